"""sse_connect against a real server: connections end, break and are refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from harn import (
    ChannelClosed,
    Err,
    HarnError,
    InvalidOption,
    Runtime,
    SseError,
    SseEvent,
    cancel_graceful,
    event_log_emit,
    event_log_read,
    is_cancelled,
    spawn,
    sse_connect,
)
from harn.clock import SystemClock, Timer
from tests.llm.sse_server import Answer, Connection, SseServer


def says(*texts: str, cut: bool = False) -> Answer:
    """Send *texts*, then end the connection, or break it."""

    async def answer(connection: Connection) -> None:
        await connection.begin()
        for text in texts:
            await connection.send(text)
        if cut:
            connection.cut()

    return answer


def refuses(status: int, kind: str = "text/plain", headers: str = "") -> Answer:
    async def answer(connection: Connection) -> None:
        await connection.begin(status, kind, headers)

    return answer


async def goes_on(connection: Connection) -> None:
    """Send an event, then nothing, and keep the connection."""
    await connection.begin()
    await connection.send("retry: 1\ndata: hello\n\n")
    await connection.closed()


async def all_of(url: str, **options: Any) -> list[SseEvent]:
    options = {"retry": 0, **options}
    async with Runtime(), sse_connect(url, **options) as stream:
        return [event async for event in stream]


async def test_events_arrive_until_the_server_says_that_there_are_no_more() -> None:
    async with SseServer(
        says('event: push\ndata: {"n":\ndata: 1}\nid: 4\n\n', "data: x\n\n")
    ) as server:
        events = await all_of(server.url, headers={"Authorization": "Bearer ü"})

    assert [(each.kind, each.payload, each.id) for each in events] == [
        ("push", {"n": 1}, "4"),
        ("message", "x", "4"),
    ]
    assert server.received[0]["accept"] == "text/event-stream"
    assert "last-event-id" not in server.received[0]
    assert "Bearer" in server.received[0]["authorization"]


async def test_a_new_connection_continues_after_the_last_event() -> None:
    answers = (
        says("id: 1\ndata: a\n\n", "id: 2\ndata: not whole"),
        says("id: ü3\ndata: b\n\n", cut=True),
        says("data: c\n\n"),
    )
    async with SseServer(*answers) as server:
        events = await all_of(server.url, last_event_id="0")

    assert [each.data for each in events] == ["a", "b", "c"]
    assert [each.get("last-event-id") for each in server.received] == ["0", "1", "ü3", "ü3"]


async def test_an_empty_id_means_that_the_server_starts_anywhere() -> None:
    async with SseServer(says("id: 1\ndata: a\n\nid\ndata: b\n\n")) as server:
        await all_of(server.url)

    assert "last-event-id" not in server.received[1]


class Hasty(SystemClock):
    """A clock that notes pauses of more than half a minute and lets them pass at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        pause = when - self.monotonic()
        if pause > 40 and not background:
            self.pauses.append(pause)
            when = self.monotonic()
        return super().call_at(when, wake, background=background)


async def test_the_server_chooses_the_pause_between_connections() -> None:
    clock = Hasty()
    async with SseServer(says("retry: 60000\ndata: a\n\n"), says("data: b\n\n")) as server:
        async with Runtime(clock=clock), sse_connect(server.url, retry=0) as stream:
            events = [event.data async for event in stream]

    assert events == ["a", "b"]
    assert [round(each) for each in clock.pauses] == [60, 60]


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    again = refuses(status, headers="retry-after: 0\r\n")
    async with SseServer(again, again, says("data: a\n\n")) as server:
        events = await all_of(server.url)

    assert [each.data for each in events] == ["a"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refuses(404), "HTTP 404"),
        (refuses(401), "HTTP 401"),
        (refuses(200, "text/html"), "serves text/html, not text/event-stream"),
        (refuses(307, headers="location: http://elsewhere/\r\n"), "is at http://elsewhere/"),
    ],
)
async def test_a_server_without_events_is_an_error(answer: Answer, said: str) -> None:
    async with SseServer(answer) as server:
        with pytest.raises(SseError, match=said) as caught:
            await all_of(server.url)

    assert caught.value.status_code in (404, 401, 200, 307)
    assert len(server.received) == 1


async def test_failures_in_a_row_can_be_limited() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{free.getsockname()[1]}/"
        with pytest.raises(SseError, match="3 times in a row") as caught:
            await all_of(url, max_retries=2)

    assert "secret" not in str(caught.value)


async def test_a_connection_that_was_made_ends_a_row_of_failures() -> None:
    async def broken(connection: Connection) -> None:
        await connection.begin(headers="content-length: 99\r\n")
        await connection.send("data: x\n\n")

    async with SseServer(refuses(503), broken, broken, refuses(503)) as server:
        events = await all_of(server.url, max_retries=2)

    assert [each.data for each in events] == ["x", "x"]
    assert len(server.received) == 5


async def test_the_next_connection_waits_as_long_as_a_refusal_asks() -> None:
    clock, times = SystemClock(), list[float]()

    def at(status: int, headers: str = "") -> Answer:
        async def answer(connection: Connection) -> None:
            times.append(clock.monotonic())
            await connection.begin(status, headers=headers)

        return answer

    async with SseServer(at(503, "retry-after-ms: 400\r\n"), at(204)) as server:
        await all_of(server.url)

    first, second = times
    assert second - first >= 0.4


@pytest.mark.parametrize("asked", ["999999999", "9" * 12 + "d"])
async def test_a_refusal_cannot_ask_for_more_than_an_hour(asked: str) -> None:
    clock, refusal = Hasty(), refuses(503, headers=f"retry-after: {asked}\r\n")
    async with SseServer(refusal) as server:
        async with Runtime(clock=clock), sse_connect(server.url, retry=0) as stream:
            assert [event async for event in stream] == []

    assert [round(each) for each in clock.pauses] == [3600]


async def test_an_event_that_is_too_long_ends_the_stream_after_those_before_it() -> None:
    found = []
    async with SseServer(says("data: ok\n\n", "data: " + "x" * 5000)) as server:
        with pytest.raises(SseError, match="longer than 1,000 bytes"):
            async with Runtime(), sse_connect(server.url, max_event_bytes=1000) as stream:
                async for event in stream:
                    found.append(event.data)

    assert found == ["ok"]


async def test_a_slow_reader_stops_the_server() -> None:
    sent = 0

    async def floods(connection: Connection) -> None:
        nonlocal sent
        await connection.begin()
        while True:
            await connection.send("data: " + "x" * 10_000 + "\n\n")
            sent += 1

    async with SseServer(floods) as server, Runtime():
        async with sse_connect(server.url, capacity=4) as stream:
            await anext(stream)
            before = -1
            # Until the buffers of the sockets are full, too.
            while before != sent and sent < 10_000:
                before = sent
                await asyncio.sleep(0.2)
            assert len(stream._events) <= 4
        assert sent < 10_000


async def test_a_wait_with_a_timeout_keeps_the_connection() -> None:
    release = asyncio.Event()

    async def later(connection: Connection) -> None:
        await connection.begin()
        await connection.send("data: 1\n\n")
        await release.wait()
        await connection.send("data: 2\nid: 9\n\n")

    async with SseServer(later) as server, Runtime():
        async with sse_connect(server.url, retry=0) as stream:
            first = await stream.receive("30s")
            assert first is not None
            assert await stream.receive("1ms") is None
            release.set()
            second = await stream.receive("30s")
            assert second is not None
            assert (first.data, second.data, stream.last_event_id) == ("1", "2", "9")
            with pytest.raises(ChannelClosed):
                await stream.receive("30s")

    assert len(server.received) == 2


async def test_silence_longer_than_the_idle_timeout_is_a_lost_connection() -> None:
    async with SseServer(goes_on) as server:
        await all_of(server.url, idle_timeout="50ms")

    assert len(server.received) == 2


async def test_leaving_the_block_hangs_up() -> None:
    async with SseServer(goes_on) as server, Runtime():
        async with sse_connect(server.url) as stream:
            assert (await anext(stream)).data == "hello"
            assert server.open_now == 1
        while server.open_now:
            await asyncio.sleep(0.001)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_the_connector_of_the_specification_stops_gracefully() -> None:
    async def consume(url: str) -> None:
        async with sse_connect(url) as stream:
            while not is_cancelled():
                event = await stream.receive("5s")
                if event is not None:
                    await event_log_emit("connector.events", event.kind, event.payload)

    async with SseServer(goes_on) as server, Runtime():
        reader = spawn(consume, server.url)
        while not await event_log_read("connector.events"):
            await asyncio.sleep(0.001)

        outcome = await cancel_graceful(reader, "30s")

        assert isinstance(outcome, Err)
        [event] = await event_log_read("connector.events")
        assert (event.kind, event.payload) == ("message", "hello")


async def test_a_stream_is_entered_once_and_before_it_is_read() -> None:
    async with SseServer(goes_on) as server, Runtime():
        stream = sse_connect(server.url)
        with pytest.raises(HarnError, match="async with"):
            await anext(stream)
        async with stream:
            with pytest.raises(HarnError, match="entered once"):
                await stream.__aenter__()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": 5}, "url"),
        ({"last_event_id": "a\nb"}, "last_event_id"),
        ({"last_event_id": 5}, "last_event_id"),
        ({"last_event_id": "\udc80"}, "last_event_id"),
        ({"capacity": 0}, "capacity"),
        ({"max_event_bytes": 0}, "max_event_bytes"),
        ({"max_retries": -1}, "max_retries"),
        ({"retry": "soon"}, "retry"),
        ({"idle_timeout": -1}, "idle_timeout"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        sse_connect(**{"url": "http://x/", **options})
