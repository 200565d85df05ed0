"""A pooler that lets clients in and has no server for them: every call is bounded and says so."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from harn import Runtime, StorageBusy
from harn.cli import invoke


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


WELCOME = b"".join(
    [
        _message(b"R", struct.pack("!i", 0)),
        _message(b"S", b"client_encoding\0UTF8\0"),
        _message(b"S", b"server_version\x0016.0\0"),
        _message(b"K", struct.pack("!ii", 1, 1)),
        _message(b"Z", b"I"),
    ]
)


@pytest.fixture
def full_pooler() -> Iterator[str]:
    """The URL of a pooler that welcomes each client and then never answers."""
    listening = socket.create_server(("127.0.0.1", 0))
    clients: list[socket.socket] = []

    def welcome() -> None:
        while True:
            try:
                client, _ = listening.accept()
                clients.append(client)
                client.recv(65536)
                client.sendall(WELCOME)
            except OSError:
                return

    thread = threading.Thread(target=welcome, daemon=True)
    thread.start()
    port = listening.getsockname()[1]
    yield (
        f"postgresql://u:PW@127.0.0.1:{port}/db"
        "?sslmode=disable&gssencmode=disable&busy_timeout=200ms"
    )
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(5)
    for client in clients:
        client.close()


@pytest.mark.timeout(30)
async def test_a_call_behind_a_full_pooler_is_busy_and_names_the_way_out(full_pooler: str) -> None:
    async with Runtime(storage=full_pooler) as runtime:
        for _ in range(2):
            with pytest.raises(StorageBusy, match=r"no answer within 0\.2 s.*pool_size") as busy:
                await runtime.event_log.emit("a", "k", 1)
            assert "PW" not in str(busy.value)


@pytest.mark.timeout(60)
def test_a_command_behind_a_full_pooler_ends_with_one_line(
    full_pooler: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["log", "verify", "--storage", full_pooler]) == 1

    assert "no answer within" in capfd.readouterr().err
