"""HTTP at the edge: the application and the server it runs on.

app.py            requests to triggers, health, metrics
admin_api.py      what operators ask for, over HTTP and over the socket
admin_listening.py  the socket in the state directory
http_messages.py  bodies within bounds, answers in JSON
http_server.py    uvicorn in our loop
"""

from harn.portal.admin_listening import AdminListening
from harn.portal.app import Served, build_admin_app, build_app
from harn.portal.http_server import Listening, bind

__all__ = ["AdminListening", "Listening", "Served", "bind", "build_admin_app", "build_app"]
