"""The process that started a worker process, as the worker sees it: it asks, and it may end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

from harn.escaping import to_json
from harn.stopping import Stopping

STOP, HURRY = b"s", b"h"
BEYOND = 4.0
"""Seconds that children may take beyond their own timeout before they are killed."""


class Parent:
    """The process that started this one, at the other end of a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def found(cls) -> Parent:
        """Take the socket from standard input, and put the null device in its place."""
        end = socket.socket(fileno=os.dup(0))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return cls(end)

    def follow(self, stopping: Stopping, within: float) -> None:
        """Stop when the parent asks for it or ends, from a thread: the loop may be blocked."""
        threading.Thread(target=self._follow, args=(stopping, within), daemon=True).start()

    def tell(self, record: dict[str, Any]) -> None:
        """Send a status; it is dropped if the parent does not read it at once."""
        with suppress(OSError):
            self._end.send(f"{to_json(record)}\n".encode(), socket.MSG_DONTWAIT)

    def _follow(self, stopping: Stopping, within: float) -> None:
        asked = b"?"
        while asked:
            try:
                asked = self._end.recv(16)
            except OSError:
                asked = b""
            if not asked or STOP in asked:
                os.kill(os.getpid(), signal.SIGTERM)
            if HURRY in asked:
                stopping.hurry()
        # The parent has ended. If this process does not stop in time, not even its signal handler
        # has run: it hangs in foreign code.
        threading.Event().wait(within + BEYOND)
        os._exit(128 + signal.SIGTERM)
