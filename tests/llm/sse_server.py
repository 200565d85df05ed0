"""A server of events on a real socket: each connection follows its own script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

Answer = Callable[["Connection"], Awaitable[None]]


class Connection:
    """One request, and the way to answer it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def begin(
        self, status: int = 200, kind: str = "text/event-stream", headers: str = ""
    ) -> None:
        """Send the head; the body ends with the connection."""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nconnection: close\r\n{headers}\r\n"
        await self.send(head.encode())

    async def send(self, data: str | bytes) -> None:
        self._writer.write(data.encode() if isinstance(data, str) else data)
        await self._writer.drain()

    async def closed(self) -> None:
        """Wait until the client has closed the connection."""
        await self._reader.read()

    def cut(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()


class SseServer:
    """Answers the first connection with the first of *answers*, and so on; then with 204."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self.received: list[dict[str, str]] = []
        """The headers of each request."""
        self.open_now = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/events"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._handlers:
            task.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open_now += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = [line.partition(":") for line in head.split("\r\n")[1:] if line]
            headers = {name.lower(): value.strip() for name, _, value in lines}
            self.received.append(headers)
            connection = Connection(reader, writer)
            if not self._answers:
                await connection.begin(204)
                return
            await self._answers.pop(0)(connection)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            self.open_now -= 1
            writer.close()
