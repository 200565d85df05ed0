"""A model provider that follows a script: a real HTTP server on loopback.

It serves OpenAI's chat completions under `/v1` and Anthropic's messages at the root, whole and
streamed, and can fail in the ways that real providers do. Any client can use it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from harn.clock import SystemClock, sleep_until
from harn.testing.provider_answers import (
    ScriptedAnswer,
    anthropic_events,
    anthropic_message,
    openai_events,
    openai_message,
)


@dataclass(frozen=True, slots=True)
class Say:
    """Answer with *text*, or with *tool_calls*: pairs of a name and arguments.

    Without *usage* (input and output tokens) it counts a token for every four bytes, at least one.
    """

    text: str = ""
    tool_calls: Sequence[tuple[str, dict[str, Any]]] = ()
    usage: tuple[int, int] | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an HTTP error, such as 429 with *retry_after* seconds."""

    status: int
    message: str = "scripted failure"
    retry_after: float | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Slow:
    """Wait *seconds* of real time, then answer with *then*."""

    seconds: float
    then: Say | Fail = field(default_factory=Say)


@dataclass(frozen=True, slots=True)
class CutShort:
    """Begin a stream, then close the connection after *pieces* of it."""

    text: str
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Garbage:
    """Answer 200 with *body*, which is not what a client expects."""

    body: bytes = b'{"choices": [{"mess'


Step = Say | Fail | Slow | CutShort | Garbage


@dataclass(frozen=True, slots=True)
class Received:
    """One request as the server saw it: *at* is when all of it had arrived (monotonic seconds).

    *tokens* are those that its answer charges, input and output together.
    """

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    at: float
    tokens: int = 0


class FakeModels:
    """The server. *script* is a list of steps, one for each request, or a function of the body.

    After the last step, and without a script, it repeats the last user message.

    >>> async def main() -> bool:
    ...     async with FakeModels([Say("hello")]) as models:
    ...         return models.url.startswith("http://127.0.0.1:")
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self, script: Iterable[Step] | Callable[[dict[str, Any]], Step] | None = None
    ) -> None:
        self._function = script if callable(script) else None
        self._steps: deque[Step] = deque() if script is None or callable(script) else deque(script)
        self._clock = SystemClock()
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._number = 0
        self.received: list[Received] = []
        """Every request, in the order of arrival."""
        self.open_now: int = 0
        """Requests being answered at this moment."""
        self.most_open: int = 0
        """The most requests that were open at once."""

    @property
    def url(self) -> str:
        """Base URL for Anthropic clients."""
        assert self._server is not None, "enter the FakeModels first"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    @property
    def openai_url(self) -> str:
        """Base URL for OpenAI-compatible clients."""
        return f"{self.url}/v1"

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

    def busiest(self, seconds: float = 60.0) -> tuple[int, int]:
        """Return the most requests and the most tokens that arrived in any *seconds*."""
        ordered = sorted(self.received, key=lambda each: each.at)
        requests = tokens = held = 0
        first = 0
        for last, each in enumerate(ordered):
            held += each.tokens
            while ordered[first].at <= each.at - seconds:
                held -= ordered[first].tokens
                first += 1
            requests, tokens = max(requests, last - first + 1), max(tokens, held)
        return requests, tokens

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one_request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _one_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        at = self._clock.monotonic()
        path = first.split(" ")[1]
        body = json.loads(content) if content else {}
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            return await self._answer(_Exchange(path, body, headers, writer), at)
        finally:
            self.open_now -= 1

    async def _answer(self, exchange: _Exchange, at: float) -> bool:
        step = self._next(exchange.body)
        charged = step.then if isinstance(step, Slow) else step
        usage = _usage(charged, exchange.body) if isinstance(charged, Say) else (0, 0)
        self.received.append(
            Received(exchange.path, exchange.body, exchange.headers, at, sum(usage))
        )
        if isinstance(step, Slow):
            await sleep_until(self._clock, self._clock.monotonic() + step.seconds)
            step = step.then
        if isinstance(step, Say):
            self._number += 1
            await exchange.say(step, usage, self._number)
            return True
        if isinstance(step, Fail):
            await exchange.fail(step)
            return True
        if isinstance(step, CutShort):
            await exchange.cut_short(step)
            return False
        await exchange.send(200, step.body, {})
        return True

    def _next(self, body: dict[str, Any]) -> Step:
        if self._function is not None:
            return self._function(body)
        if self._steps:
            return self._steps.popleft()
        return Say(_last_text(body))


@dataclass(slots=True)
class _Exchange:
    """One request and the connection its answer goes to."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    writer: asyncio.StreamWriter

    @property
    def _is_anthropic(self) -> bool:
        return self.path.endswith("/messages")

    @property
    def _events(self) -> Callable[[ScriptedAnswer], Iterable[str]]:
        return anthropic_events if self._is_anthropic else openai_events

    async def say(self, step: Say, usage: tuple[int, int], number: int) -> None:
        if self.body.get("stream"):
            await self._begin_stream(step.headers)
            for event in self._events(self._answer(step, usage, number)):
                await self._chunk(event)
            self.writer.write(b"0\r\n\r\n")
            await self.writer.drain()
        else:
            message = anthropic_message if self._is_anthropic else openai_message
            body = message(self._answer(step, usage, number))
            await self.send(200, json.dumps(body).encode(), step.headers)

    async def fail(self, step: Fail) -> None:
        headers = dict(step.headers)
        if step.retry_after is not None:
            headers["retry-after"] = f"{step.retry_after:g}"
        error = {"type": "scripted", "message": step.message}
        content = json.dumps({"type": "error", "error": error}).encode()
        await self.send(step.status, content, headers)

    async def cut_short(self, step: CutShort) -> None:
        await self._begin_stream({})
        for number, event in enumerate(self._events(self._answer(Say(step.text), (1, 1), 0))):
            if number > step.pieces:
                return
            await self._chunk(event)

    async def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        head = {"content-type": "application/json", "content-length": str(len(content)), **headers}
        self._head(status, head)
        self.writer.write(content)
        await self.writer.drain()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.writer.write(f"HTTP/1.1 {status} Scripted\r\n{lines}\r\n".encode("latin-1"))

    async def _begin_stream(self, headers: dict[str, str]) -> None:
        stream = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        self._head(200, {**stream, **headers})
        await self.writer.drain()

    async def _chunk(self, text: str) -> None:
        data = text.encode()
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    def _answer(self, step: Say, usage: tuple[int, int], number: int) -> ScriptedAnswer:
        model = self.body.get("model", "fake")
        return ScriptedAnswer(model, number, step.text, step.tool_calls, usage)


def _usage(step: Say, body: dict[str, Any]) -> tuple[int, int]:
    if step.usage is not None:
        return step.usage
    said = len(json.dumps(body.get("messages", "")))
    return max(1, said // 4), max(1, len(step.text) // 4)


def _last_text(body: dict[str, Any]) -> str:
    for message in reversed(body.get("messages", [])):
        content = message.get("content")
        if isinstance(content, str):
            return content
        for block in content or ():
            if block.get("type") == "text":
                return str(block["text"])
    return ""
