"""TCP proxies that cut or hold a connection at a chosen moment of the PostgreSQL conversation."""

from __future__ import annotations

import socket
import threading
from typing import Literal

from tests.forwarder import Forwarder, shut

Cut = Literal["before commit", "after commit"]
COMMIT = b"COMMIT\x00"


class CuttingProxy(Forwarder):
    """Forwards to the server of *url*; cuts once, around the next commit, after `arm`."""

    def __init__(self, url: str) -> None:
        self._cut: Cut | None = None
        self._at = COMMIT
        self.cuts = 0
        super().__init__(url)

    def arm(self, cut: Cut, at: bytes = COMMIT) -> None:
        """Cut at the message that has *at* in it: a COMMIT, or a statement that commits itself."""
        self._at = at
        self._cut = cut

    def send_on(
        self, data: bytes, source: socket.socket, target: socket.socket, *, to_server: bool
    ) -> bool:
        if not (to_server and self._cut and self._commits(data)):
            return super().send_on(data, source, target, to_server=to_server)
        cut, self._cut = self._cut, None
        self.cuts += 1
        shut(source)  # first: the answer must not come through
        if cut == "after commit":
            target.sendall(data)
        return False

    def _commits(self, data: bytes) -> bool:
        # A hint is a transaction of its own, sent when it pleases: that is not the one to cut.
        return self._at in data and (self._at != COMMIT or b"pg_notify" not in data)


class HoldingProxy(Forwarder):
    """Forwards to the server of *url*; after `arm`, holds back the end of the next burst with *at*.

    The server gets the burst without its Sync and nothing more, the client no answer, and the
    connection stays open: what a host looks like whose network was cut between two packets.
    """

    SYNC = b"S\x00\x00\x00\x04"

    def __init__(self, url: str) -> None:
        self._at: bytes | None = None
        self._cut_off: set[socket.socket] = set()
        self.held = threading.Event()
        super().__init__(url)

    def arm(self, at: bytes) -> None:
        self._at = at

    def send_on(
        self, data: bytes, source: socket.socket, target: socket.socket, *, to_server: bool
    ) -> bool:
        if source in self._cut_off:
            return True
        if not (to_server and self._at and self._at in data):
            return super().send_on(data, source, target, to_server=to_server)
        self._at = None
        self._cut_off |= {source, target}
        target.sendall(data.partition(self.SYNC)[0])
        self.held.set()
        return True
