"""HTTP: the application and the server that it runs on.

app.py            requests to triggers, health, metrics
admin_api.py      operators' verbs, over HTTP and over the socket
admin_socket_server.py the socket in the state directory
pages.py          the pages as HTML, and the login; templates/, their text
page_table.py     every page: its path, and what it shows
page_filters.py   how pages show names, numbers, times and charts
static_files.py   the style and the script of the pages; static/, the files
usage_totals.py   what model calls have cost, each record added once
dead_letter_export.py dead letters as JSON lines
login.py          who may look and who may act: keys, sessions, origins
shared_reads.py   reads that all viewers share, one a second
store_snapshot.py everything in one document, and the queues' speed
live_events.py    the snapshot as server-sent events
http_messages.py  request bodies with limits, answers in JSON
http_server.py    uvicorn in the service's event loop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

try:
    # Every file below uses one of them; a missing one is told once, with its extra.
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as _error:  # pragma: no cover - the extra is installed in tests
    raise ImportError(
        "serving needs the extra: pip install 'harn-runtime[server]'", name=_error.name
    ) from _error

if TYPE_CHECKING:
    from harn.portal.admin_socket_server import AdminListening
    from harn.portal.app import Served, build_admin_app, build_app
    from harn.portal.http_server import Listening, bind
else:
    front_door(
        __name__,
        {
            "admin_socket_server": "AdminListening",
            "app": "Served build_admin_app build_app",
            "http_server": "Listening bind",
        },
    )

__all__ = ["AdminListening", "Listening", "Served", "bind", "build_admin_app", "build_app"]
