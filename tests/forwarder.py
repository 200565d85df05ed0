"""Forwards TCP connections to a server; what it lets through is for its subclasses to say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from urllib.parse import urlsplit


class Forwarder:
    """Forwards connections made to its own `url` to the server that *url* names."""

    def __init__(self, url: str, address: str = "127.0.0.1") -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listening = socket.create_server((address, 0))
        port = self._listening.getsockname()[1]
        self.url = parts._replace(netloc=f"{parts.username}@{address}:{port}").geturl()
        self._open = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def send_on(
        self, data: bytes, source: socket.socket, target: socket.socket, *, to_server: bool
    ) -> bool:
        """Send *data* of *source* on to *target*; False ends their connection."""
        target.sendall(data)
        return True

    def close(self) -> None:
        for each in self._open:
            shut(each)
        for thread in self._threads:
            thread.join(30)
        for each in self._open:
            each.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True, name="harn-test-network")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(client)
            try:
                server = socket.create_connection(self._server)
            except OSError:
                shut(client)
                continue
            self._open.append(server)
            self._start(self._forward, client, server, True)
            self._start(self._forward, server, client, False)

    def _forward(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        try:
            while data := source.recv(65536):
                if not self.send_on(data, source, target, to_server=to_server):
                    return
        except OSError:
            pass
        finally:
            shut(target)


def shut(sock: socket.socket) -> None:
    """End both directions of *sock*, if they are open."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
