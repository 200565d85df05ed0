"""`sse_connect`: the events of a server, over connections that are made again when they end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from harn.clock import sleep_until
from harn.current import current_runtime
from harn.duration import Duration, to_ms, to_seconds
from harn.error_text import error_text
from harn.errors import ChannelClosed, HarnError, InvalidOption, SseError
from harn.llm.event_stream import LONGEST_RETRY_MS, EventStreamParser, SseEvent
from harn.masking import mask
from harn.option_checks import whole_number
from harn.ratelimit import wait_in_headers
from harn.sync import Channel, channel_select
from harn.tasks import TaskHandle, spawn

logger: logging.Logger = logging.getLogger("harn.llm")

RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
NO_CONTENT = 204
"""With it a server says that the reader is not to connect again."""
LONGEST_PAUSE_MS = 30_000
"""The longest pause between attempts that fail, unless the server asks for more."""
CONNECT_TIMEOUT = 10.0
LEAST_PAUSE_MS = 50
"""The shortest pause: a server that ends each connection at once is not asked without rest."""
ACCEPTED = {
    b"accept": b"text/event-stream",
    b"cache-control": b"no-store",
    b"accept-encoding": b"identity",
}


@dataclass(frozen=True, slots=True)
class _Options:
    """The checked options of a stream."""

    url: str
    headers: Mapping[str, str]
    max_event_bytes: int
    retry_ms: int
    max_retries: int | None
    idle_timeout: float | None


class SseStream:
    r"""The events of a server; see `sse_connect`.

    >>> import asyncio
    >>> async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    ...     await reader.readuntil(b"\r\n\r\n")
    ...     writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    ...     writer.write(b"event: push\ndata: main\nid: 7\n\n")
    ...     writer.close()
    >>> async def main() -> SseEvent | None:
    ...     server = await asyncio.start_server(serve, "127.0.0.1", 0)
    ...     host, port = server.sockets[0].getsockname()
    ...     async with server, sse_connect(f"http://{host}:{port}/events") as stream:
    ...         return await stream.receive()
    >>> asyncio.run(main())
    SseEvent(kind='push', data='main', id='7')
    """

    def __init__(self, options: _Options, last_event_id: str, capacity: int) -> None:
        self._options = options
        self._events: Channel[SseEvent] = Channel(f"sse:{mask(options.url)}", capacity)
        self._failure: BaseException | None = None
        self._reading: TaskHandle[None] | None = None
        self._parser = EventStreamParser(options.max_event_bytes, last_event_id)
        self._retry_ms = options.retry_ms
        self.last_event_id: str = last_event_id
        """The id of the last event that was received here: continue after it in a later process."""

    async def __aenter__(self) -> Self:
        if self._reading is not None:
            raise HarnError("a stream can be entered once; connect again for another one")
        self._reading = spawn(self._read, name="sse")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._events.close()
        if self._reading is not None:
            self._reading.cancel()
            await self._reading._join()

    def __aiter__(self) -> AsyncIterator[SseEvent]:
        return self

    async def __anext__(self) -> SseEvent:
        try:
            return self._taken(await self._open().receive())
        except ChannelClosed:
            if self._failure is not None:
                raise self._failure from None
            raise StopAsyncIteration from None

    async def receive(self, timeout: Duration | None = None) -> SseEvent | None:
        """Take the next event; None if there is none within *timeout*.

        At the end of the stream it raises `ChannelClosed`, or the error that ended it. Cancelling
        takes no event and keeps the connection.
        """
        events = self._open()
        found = await channel_select([events], timeout)
        if found is not None:
            return self._taken(found.value)
        if events.closed and not len(events):
            raise self._failure or ChannelClosed(f"{events.name} has ended")
        return None

    def _open(self) -> Channel[SseEvent]:
        if self._reading is None:
            raise HarnError("this stream is not connected; use `async with sse_connect(...)`")
        return self._events

    def _taken(self, event: SseEvent) -> SseEvent:
        self.last_event_id = event.id
        return event

    # -- the connections, in a task of their own

    async def _read(self) -> None:
        try:
            await self._read_all()
        except ChannelClosed:
            pass  # the reader has left the block
        except Exception as error:
            self._failure = error
        finally:
            self._events.close()

    async def _read_all(self) -> None:
        """Connect, read until the connection ends, and connect again; return if that is over."""
        import_client()
        clock, failed = current_runtime().clock, 0
        while True:
            try:
                if not await self._read_connection():
                    return
                failed, pause_ms = 0, self._retry_ms
                logger.debug("%s: the connection has ended", mask(self._options.url))
            except _Lost as lost:
                failed = 1 if lost.was_connected else failed + 1
                if self._options.max_retries is not None and failed > self._options.max_retries:
                    raise SseError(
                        f"{mask(self._options.url)}: {lost} ({failed} times in a row)",
                        status_code=lost.status_code,
                    ) from None
                pause_ms = max(lost.wait_ms, _pause_ms(self._retry_ms, failed))
                logger.info(
                    "%s: %s; connects again in %d ms", mask(self._options.url), lost, pause_ms
                )
            await sleep_until(clock, clock.monotonic() + max(pause_ms, LEAST_PAUSE_MS) / 1000)

    async def _read_connection(self) -> bool:
        """Read one connection to its end; false if there is to be no other."""
        import httpx2

        options, was_connected = self._options, False
        headers = {name.encode(): value.encode() for name, value in options.headers.items()}
        headers = {**ACCEPTED, **headers}
        if _is_id(self._parser.id):
            headers[b"last-event-id"] = self._parser.id.encode()
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT, read=options.idle_timeout)
        try:
            async with (
                httpx2.AsyncClient(timeout=timeout, follow_redirects=False) as client,
                client.stream("GET", options.url, headers=headers) as response,
            ):
                if response.status_code == NO_CONTENT:
                    return False
                self._check(response)
                was_connected = True
                self._parser = EventStreamParser(options.max_event_bytes, self._parser.id)
                async for piece in response.aiter_bytes():
                    for event in self._parser.feed(piece):
                        await self._events.send(event)
                    if self._parser.retry_ms is not None:
                        self._retry_ms = self._parser.retry_ms
        except httpx2.TransportError as error:
            raise _Lost(error_text(error), was_connected=was_connected) from None
        return True

    def _check(self, response: Any) -> None:
        """Raise `SseError` if the server does not serve events here, `_Lost` if it may later."""
        status, url = response.status_code, mask(self._options.url)
        if status in RETRYABLE:
            now_ms = current_runtime().clock.now_ms()
            wait = wait_in_headers(response.headers, now_ms) or 0.0
            wait_ms = min(round(wait * 1000), LONGEST_RETRY_MS)
            raise _Lost(f"HTTP {status}", status_code=status, wait_ms=wait_ms)
        if 300 <= status < 400:
            to = mask(response.headers.get("location", "nowhere"))
            raise SseError(f"{url} is at {to} (HTTP {status}); connect there", status_code=status)
        if status != 200:
            raise SseError(f"{url}: HTTP {status}", status_code=status)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            raise SseError(
                f"{url} serves {kind or 'no content type'}, not text/event-stream", status_code=200
            )


class _Lost(Exception):
    """A connection that ended, or could not be made; the next one may succeed."""

    def __init__(
        self,
        reason: str,
        *,
        was_connected: bool = False,
        status_code: int | None = None,
        wait_ms: int = 0,
    ) -> None:
        super().__init__(reason)
        self.was_connected = was_connected
        self.status_code = status_code
        self.wait_ms = wait_ms


def sse_connect(
    url: str,
    last_event_id: str | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    capacity: int = 64,
    max_event_bytes: int = 1_048_576,
    retry: Duration = "3s",
    max_retries: int | None = None,
    idle_timeout: Duration | None = None,
) -> SseStream:
    """Follow the server-sent events at *url*; use it as `async with`, and loop over it.

    The first connection continues after *last_event_id*. When a connection ends or cannot be made,
    the next one continues after the last event that arrived, once the time that the server asked
    for with `retry:` has passed (at first *retry*); after failures in a row it is doubled up to
    30 s. *max_retries* failures in a row are retried, None means forever. If nothing arrives for
    *idle_timeout*, not even a comment, the connection counts as lost. At most *capacity* events
    wait for the reader; beyond that the connection is not read, so the server waits.

    The loop ends when the server answers 204. It raises `SseError` if the server does not serve
    events there, or if an event is longer than *max_event_bytes*. Leaving the block closes the
    connection. Cancelling a wait for an event loses none.

    >>> stream = sse_connect("https://example.com/events", last_event_id="41")
    >>> stream.last_event_id
    '41'
    """
    scheme = urlsplit(url).scheme if isinstance(url, str) else ""
    if scheme not in ("http", "https"):
        raise InvalidOption("url", mask(url) if isinstance(url, str) else url, "an http(s):// URL")
    if last_event_id and not _is_id(last_event_id):
        raise InvalidOption("last_event_id", last_event_id, "text without control characters")
    whole_number("max_event_bytes", max_event_bytes, least=1)
    if max_retries is not None:
        whole_number("max_retries", max_retries, least=0)
    idle = None if idle_timeout is None else to_seconds(idle_timeout, "idle_timeout")
    options = _Options(
        url, dict(headers or {}), max_event_bytes, to_ms(retry, "retry"), max_retries, idle
    )
    return SseStream(options, last_event_id or "", whole_number("capacity", capacity, least=1))


def import_client() -> None:
    """Raise an error that names the extra if the HTTP client is not installed."""
    try:
        import httpx2  # noqa: F401
    except ImportError:
        raise HarnError("sse_connect needs httpx2: pip install 'harn-runtime[llm]'") from None


def _is_id(value: object) -> bool:
    """Tell whether a header can carry *value*; an empty one means that there is no id."""
    if not isinstance(value, str) or not value:
        return False
    is_plain = not any(each < " " or each == "\x7f" for each in value)
    return is_plain and not any("\ud800" <= each <= "\udfff" for each in value)


def _pause_ms(retry_ms: int, failed: int) -> int:
    """Return the pause after *failed* attempts in a row: doubled, up to the longest.

    >>> [_pause_ms(3000, failed) for failed in (1, 2, 3, 9)]
    [3000, 6000, 12000, 30000]
    """
    doubled = retry_ms << min(failed - 1, 20)
    return max(retry_ms, min(doubled, LONGEST_PAUSE_MS))
