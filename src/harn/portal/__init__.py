"""HTTP at the edge: the application and the server it runs on.

app.py           requests to triggers, health, metrics
http_server.py   uvicorn in our loop
"""

from harn.portal.app import Served, build_app
from harn.portal.http_server import Listening, bind

__all__ = ["Listening", "Served", "bind", "build_app"]
