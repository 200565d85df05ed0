"""How a connection to the server is opened, and how long it may stay silent."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from psycopg import Connection

STATEMENT_MS = 30_000
"""Milliseconds that one statement may take."""


IDLE_MS = 2000
"""Milliseconds after which the server ends a transaction whose client sends nothing more.

A process that was stopped, or whose network was cut, holds its locks that long. It is shorter than
the wait for a lock, so that the others get their turn and no error. A client that was only slow
tries again.
"""


FIRST_MS = 3000
"""Milliseconds after which a server that has never been reached is given up."""


CONNECT: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,  # see `Pipeline`
    "connect_timeout": 5,
    "application_name": "harn",
    "client_encoding": "utf8",
}


KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""How soon a connection ends whose network was cut, without a word from the other side.

The kernel asks after 10 idle seconds, and gives up after 15 s without an answer (milliseconds for
the last one). Its own default is some hours, in which a caller would wait for an answer.
"""


def connect_options(dsn: str, **more: Any) -> dict[str, Any]:
    """Return what every connection of ours is opened with; the user's *dsn* says more or else."""
    given = conninfo_to_dict(dsn)
    if "service" in given:  # a file says more, which would lose to what is given here
        return {**CONNECT, **more}
    unsaid = {name: value for name, value in KEEPALIVE.items() if name not in given}
    return {**CONNECT, **unsaid, **more}


@contextlib.contextmanager
def answered_within(connection: Connection[Any], ms: int) -> Iterator[None]:
    """Cut *connection* if the block lasts longer than *ms*.

    A pooler lets a client in before it has a server for it, and then says nothing: no limit that
    is set on the server can help.
    """
    late = threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError, psycopg.Error):
            with socket.socket(fileno=os.dup(connection.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ms / 1000, cut)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # Python 3.12 starts no thread while it is ending
        timer.start()
    try:
        yield
    except Exception as error:
        if not late.is_set():
            raise
        raise psycopg.OperationalError(
            f"let in, but no answer within {ms / 1000:g} s; a pooler without a free connection? "
            "Raise its pool size, lower pool_size in the URL, or use its transaction mode"
        ) from error
    finally:
        timer.cancel()
