"""A TCP proxy that cuts a connection at a chosen moment of the PostgreSQL conversation."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Literal
from urllib.parse import urlsplit

Cut = Literal["before commit", "after commit"]
COMMIT = b"COMMIT\x00"


class CuttingProxy:
    """Forwards to *dsn*'s server; cuts once, around the next commit, after `arm` was called."""

    def __init__(self, dsn: str) -> None:
        parts = urlsplit(dsn)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._cut: Cut | None = None
        self._at = COMMIT
        self.cuts = 0
        self._open: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        port = self._listening.getsockname()[1]
        self.dsn = parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
        self._start(self._accept)

    def arm(self, cut: Cut, at: bytes = COMMIT) -> None:
        """Cut at the message that has *at* in it: a COMMIT, or a statement that commits itself."""
        self._at = at
        self._cut = cut

    def close(self) -> None:
        for each in self._open:
            _shut(each)
        for thread in self._threads:
            thread.join(5)
        for each in self._open:
            each.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True, name="harn-test-proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self._open += [client, server]
            self._start(self._forward, client, server, True)
            self._start(self._forward, server, client, False)

    def _forward(self, source: socket.socket, target: socket.socket, from_client: bool) -> None:
        try:
            while data := source.recv(65536):
                if from_client and self._cut and self._commits(data):
                    self._cut_now(source, target, data)
                    return
                target.sendall(data)
        except OSError:
            pass
        finally:
            _shut(target)

    def _commits(self, data: bytes) -> bool:
        # A hint is a transaction of its own, sent when it pleases: that is not the one to cut.
        return self._at in data and (self._at != COMMIT or b"pg_notify" not in data)

    def _cut_now(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        cut, self._cut = self._cut, None
        self.cuts += 1
        _shut(client)  # first: the answer must not come through
        if cut == "after commit":
            server.sendall(data)
        _shut(server, only_writing=cut == "after commit")


def _shut(sock: socket.socket, *, only_writing: bool = False) -> None:
    try:
        sock.shutdown(socket.SHUT_WR if only_writing else socket.SHUT_RDWR)
    except OSError:
        pass
