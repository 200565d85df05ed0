"""The three supervisors that the concurrency page shows, running."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from harn import (
    Child,
    ChildContext,
    DeadlineExceeded,
    Delta,
    ModelReply,
    ModelRequest,
    Restart,
    Usage,
    agent_loop,
    deadline,
    event_log_emit,
    event_log_read,
    is_cancelled,
    llm_provider,
    mailbox_open,
    mailbox_send,
    sleep,
    supervisor_start,
)
from harn.testing import FakeClock, fresh_runtime, run_virtual


@dataclass(frozen=True)
class Sse:
    kind: str
    payload: str


class Stream:
    """A client of server-sent events, as small as can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self, timeout: str) -> Sse | None:
        fields = {}
        try:
            async with deadline(timeout):
                while line := (await self._line()):
                    name, _, value = line.partition(": ")
                    fields[name] = value
        except DeadlineExceeded:
            return None
        return Sse(fields["event"], fields["data"])

    async def _line(self) -> str:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the stream was cut")
        return line.decode().strip()

    def close(self) -> None:
        self._writer.transport.abort()


@contextlib.asynccontextmanager
async def sse_connect(port: int) -> AsyncIterator[Stream]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stream = Stream(reader, writer)
    try:
        writer.write(b"GET /events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
        while (await reader.readline()).strip():
            pass
        yield stream
    finally:
        stream.close()


class DroppingServer:
    """Sends two events a connection, the second cut in the middle now and then, and hangs up."""

    def __init__(self) -> None:
        self.connections = 0
        self.sent = 0
        self.handlers: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (await reader.readline()).strip():
                pass
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for _ in range(2):
                self.sent += 1
                writer.write(f"event: push\ndata: {self.sent}\n\n".encode())
            writer.write(b"event: pu")
            await writer.drain()
            if self.connections > 4:
                await reader.read()
        finally:
            writer.transport.abort()


def test_the_connector_stream_survives_a_server_that_drops_connections() -> None:
    server = DroppingServer()

    async def main() -> None:
        listening = await asyncio.start_server(server, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]

        async def follow(ctx: ChildContext) -> None:
            async with sse_connect(port) as stream:
                while not is_cancelled():
                    event = await stream.receive("5s")
                    if event is not None:
                        await event_log_emit("connector.github", event.kind, event.payload)

        streams = await supervisor_start(
            name="connector-streams",
            strategy="one_for_one",
            children=[
                Child(
                    name="github-events",
                    kind="connector_stream",
                    restart=Restart(
                        mode="on_failure",
                        max_restarts=8,
                        window_ms=60_000,
                        backoff_ms=250,
                        factor=2,
                        jitter_ms=100,
                        circuit_open_ms=300_000,
                    ),
                    task=follow,
                )
            ],
        )
        while len(await event_log_read("connector.github")) < 10:
            await sleep("50ms")
        [child] = streams.state().children
        assert (child.status, child.restart_count) == ("running", 4)
        assert "the stream was cut" in (child.last_error or "")
        state = await streams.stop("100ms")
        listening.close()

        events = await event_log_read("connector.github")
        assert [event.payload for event in events] == [str(n) for n in range(1, 11)]
        assert state.children[0].status == "stopped"

    run_virtual(main)
    assert server.connections == 5


async def test_the_continuous_persona_comes_back_and_holds_its_lease() -> None:
    clock = FakeClock()
    days = []

    class Inbox:
        """A model that looks into the inbox once and is done."""

        async def complete(self, request: ModelRequest) -> ModelReply:
            await sleep("1m")
            return ModelReply("nothing new", Usage(3, 2), request.model)

        async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            yield Delta(text="nothing new")

        def count_tokens(self, request: ModelRequest) -> int:
            return 3

    async def watch_the_inbox(ctx: ChildContext) -> str:
        days.append((ctx.child_kind, ctx.attempt, ctx.lease_epoch))
        return (await agent_loop("watch the review inbox")).text

    async with fresh_runtime(clock=clock):
        llm_provider("inbox", Inbox(), default_model="m")
        persona = await supervisor_start(
            name="review-captain",
            strategy="one_for_one",
            children=[
                Child(
                    name="inbox-loop",
                    kind="persona_loop",
                    active_lease="persona:review-captain",
                    restart={
                        "mode": "always",
                        "max_restarts": 10,
                        "window_ms": 300_000,
                        "backoff_ms": 1000,
                    },
                    task=watch_the_inbox,
                )
            ],
        )
        await clock.advance("64s")
        [child] = persona.state().children

        assert days == [("persona_loop", 1, 1), ("persona_loop", 2, 2)]
        assert child.as_dict() == {
            "name": "inbox-loop",
            "kind": "persona_loop",
            "status": "running",
            "restart_count": 1,
            "last_error": None,
            "current_wait_reason": None,
            "active_lease": "persona:review-captain",
            "next_restart_time": None,
        }
        await clock.advance("1d")
        assert persona.state().children[0].status == "running"


async def test_the_mailbox_actor_goes_on_with_the_next_message() -> None:
    clock = FakeClock()
    handled = []

    def handle_patch_message(message: str) -> None:
        if message == "poison":
            raise ValueError("cannot be applied")
        handled.append(message)

    async with fresh_runtime(clock=clock):
        inbox = mailbox_open("patcher", scope="task_group", capacity=32)

        async def patch(ctx: ChildContext) -> None:
            while not is_cancelled():
                handle_patch_message(await inbox.receive())

        actor = await supervisor_start(
            name="patch-actors",
            strategy="rest_for_one",
            children=[
                Child(
                    name="patcher",
                    kind="actor_mailbox",
                    restart=Restart(
                        mode="on_failure", max_restarts=3, window_ms=60_000, backoff_ms=100
                    ),
                    task=patch,
                )
            ],
        )
        for message in ("one", "poison", "two"):
            assert await mailbox_send("patcher", message)
        await clock.advance("99ms")
        assert handled == ["one"]
        await clock.advance("1ms")

        assert handled == ["one", "two"]
        stopping = asyncio.ensure_future(actor.stop("1s"))
        await clock.advance("1s")
        state = await stopping
        assert (state.status, state.metrics.restarted) == ("stopped", 1)
