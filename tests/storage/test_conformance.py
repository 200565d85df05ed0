"""One suite, every engine: what an event log does, wherever it is stored."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from harn import Event, InvalidOption, Runtime, StorageError
from harn.eventlog import EventLog
from harn.storage import Operation, Rows, Store, ask, draft
from harn.storage.log import append, events, newest
from harn.storage.log.events import (
    drop_cursor,
    list_topics,
    move_cursor,
    now,
    read_cursor,
    skip_offsets,
)
from harn.storage.queries import WIDE


@pytest.fixture
async def log(storage_url: str) -> AsyncIterator[EventLog]:
    async with Runtime(storage=storage_url) as runtime:
        yield runtime.event_log


def ids(events: list[Event]) -> list[int]:
    return [event.id for event in events]


async def test_a_record_comes_back_as_it_was_emitted(log: EventLog) -> None:
    emitted = await log.emit("a.topic", "greeting", {"text": "hé", "n": [1, None, 2.5]}, {"h": "1"})

    [found] = await log.read("a.topic")

    assert found == emitted
    assert found.as_dict() == {
        "id": 1,
        "topic": "a.topic",
        "kind": "greeting",
        "payload": {"text": "hé", "n": [1, None, 2.5]},
        "headers": {"h": "1"},
        "occurred_at_ms": emitted.occurred_at_ms,
    }


async def test_E2_offsets_count_from_one_in_each_topic(log: EventLog) -> None:
    first = [(await log.emit("a", "k", n)).id for n in range(3)]
    other = [(await log.emit("b", "k", n)).id for n in range(2)]

    assert first == [1, 2, 3]
    assert other == [1, 2]
    assert await log.head("a") == 3
    assert await log.head("nothing") == 0


async def test_reading_starts_after_the_given_offset_and_stops_at_the_limit(log: EventLog) -> None:
    for n in range(10):
        await log.emit("a", "k", n)

    assert ids(await log.read("a", after=4, limit=3)) == [5, 6, 7]
    assert await log.read("a", after=10) == []
    assert await log.read("a", limit=0) == []
    assert await log.read("unknown") == []


async def test_E4_concurrent_emits_keep_each_senders_order(log: EventLog) -> None:
    async def send(sender: int) -> None:
        for n in range(20):
            await log.emit("busy", "k", [sender, n])

    await asyncio.gather(*(send(sender) for sender in range(20)))
    events = await log.read("busy")

    assert ids(events) == list(range(1, 401))
    for sender in range(20):
        assert [e.payload[1] for e in events if e.payload[0] == sender] == list(range(20))
    assert await log.read("busy") == events


@pytest.mark.parametrize("count", [1, 2, WIDE - 1, WIDE, WIDE + 1, 2 * WIDE, 3 * WIDE - 1])
async def test_an_append_of_any_size_keeps_its_order(log: EventLog, count: int) -> None:
    drafts = [draft("ab"[n % 2], "k", n) for n in range(count)]

    places = await log.append(drafts)
    found = {topic: await log.read(topic) for topic in "ab"}

    assert [id for id, _ in places] == [n // 2 + 1 for n in range(count)]
    assert [e.payload for e in found["a"]] == list(range(0, count, 2))
    assert [e.payload for e in found["b"]] == list(range(1, count, 2))
    assert ids(found["a"]) == list(range(1, len(found["a"]) + 1))


@pytest.mark.parametrize("bad", [["a"], {"a": 1}, None, 7, ""])
async def test_a_topic_and_a_kind_are_strings(log: EventLog, bad: Any) -> None:
    await log.emit("a", "k", 1)  # both are known from here on

    with pytest.raises(InvalidOption, match="topic"):
        await log.emit(bad, "k", 2)
    with pytest.raises(InvalidOption, match="kind"):
        await log.emit("a", bad, 2)

    assert [e.payload for e in await log.read("a")] == [1]


async def test_E6_an_append_to_several_topics_is_all_or_nothing(log: EventLog) -> None:
    store = log.store

    def half_way() -> Operation[None]:
        yield from append([draft("a", "k", 1), draft("b", "k", 1)])
        raise LookupError("on purpose")

    with pytest.raises(LookupError):
        await store.run(half_way)
    await log.append([draft("a", "k", 2), draft("b", "k", 3), draft("a", "k", 4)])

    assert [(e.id, e.payload) for e in await log.read("a")] == [(1, 2), (2, 4)]
    assert [(e.id, e.payload) for e in await log.read("b")] == [(1, 3)]


async def test_an_operation_that_fails_in_a_shared_commit_fails_alone(log: EventLog) -> None:
    def fails(n: int) -> Callable[[], Operation[int]]:
        def operation() -> Operation[int]:
            yield from append([draft("shared", "k", n)])
            if n % 3 == 0:
                raise LookupError(n)
            return n

        return operation

    results = await asyncio.gather(
        *(log.store.run(fails(n)) for n in range(30)), return_exceptions=True
    )

    landed = [n for n in range(30) if n % 3]
    assert [r for r in results if isinstance(r, int)] == landed
    assert sorted(e.payload for e in await log.read("shared")) == landed
    assert ids(await log.read("shared")) == list(range(1, len(landed) + 1))


async def test_the_offsets_go_on_after_a_topic_was_trimmed_to_nothing(log: EventLog) -> None:
    for n in range(5):
        await log.emit("a", "k", n)

    assert await log.trim("a", keep=0) == 5
    assert await log.read("a") == []
    assert (await log.emit("a", "k", "next")).id == 6
    assert ids(await log.read("a")) == [6]


async def test_a_topic_is_trimmed_by_count_and_by_age(log: EventLog) -> None:
    await log.append([draft("a", "k", n) for n in range(10)])
    before = (await log.read("a"))[0].occurred_at_ms

    assert await log.trim("a", keep=4) == 6
    assert ids(await log.read("a")) == [7, 8, 9, 10]
    assert await log.trim("a", before_ms=before) == 0
    assert await log.trim("a", before_ms=before + 86_400_000) == 4


async def test_E11_a_trim_stops_at_the_slowest_consumer(log: EventLog) -> None:
    await log.append([draft("a", "k", n) for n in range(10)])
    await log.store.run(lambda: move_cursor("a", "fast", 9))
    await log.store.run(lambda: move_cursor("a", "slow", 3))

    assert await log.trim("a", keep=0) == 3
    assert ids(await log.read("a"))[0] == 4
    await log.store.run(lambda: drop_cursor("a", "slow"))
    assert await log.trim("a", keep=0) == 6
    assert await log.trim("a", keep=0, force=True) == 1


async def test_E8_a_cursor_never_moves_back(log: EventLog) -> None:
    run = log.store.run
    assert await run(lambda: read_cursor("a", "c"), write=False) == 0

    assert await run(lambda: move_cursor("a", "c", 7)) == 7
    assert await run(lambda: move_cursor("a", "c", 3)) == 7
    assert await run(lambda: read_cursor("a", "c"), write=False) == 7


async def test_topics_are_listed_with_their_heads(log: EventLog) -> None:
    await log.emit("b", "k", 1)
    await log.append([draft("a", "k", 1), draft("a", "k", 2)])

    assert await log.store.run(list_topics, write=False) == {"a": 2, "b": 1}


async def test_a_subscription_sees_what_comes_after_it_in_order(log: EventLog) -> None:
    await log.emit("a", "k", "before")
    news = log.subscribe("a")

    for n in range(5):
        await log.emit("a", "k", n)

    assert [(await anext(news)).payload for _ in range(5)] == list(range(5))


async def test_a_subscription_may_start_at_an_offset_and_waits_for_more(log: EventLog) -> None:
    for n in range(4):
        await log.emit("a", "k", n)
    news = log.subscribe("a", after=2)

    assert [(await anext(news)).id for _ in range(2)] == [3, 4]
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)
    await log.emit("a", "k", "late")

    assert (await waiting).payload == "late"


async def test_a_cancelled_wait_of_a_subscription_loses_nothing(log: EventLog) -> None:
    news = log.subscribe("a")
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting

    await log.emit("a", "k", 1)

    assert (await anext(news)).id == 1


async def test_a_closed_subscription_ends(log: EventLog) -> None:
    news = log.subscribe("a", after=0)
    await news.aclose()

    assert [event async for event in news] == []


async def test_what_was_recorded_is_read_in_order_with_what_was_emitted(log: EventLog) -> None:
    log.record("a", "first", {"n": 1})
    await log.emit("a", "second", {"n": 2})
    log.record("a", "third", lambda: {"n": 3}, {"schema": "v1"})

    events = await log.read("a")

    assert [(e.id, e.kind, e.payload["n"]) for e in events] == [
        (1, "first", 1),
        (2, "second", 2),
        (3, "third", 3),
    ]
    assert events[2].headers == {"schema": "v1"}


async def test_a_subscriber_is_woken_by_a_record(log: EventLog) -> None:
    news = log.subscribe("a")
    waiting = asyncio.ensure_future(anext(news))
    for _ in range(3):
        await asyncio.sleep(0)

    log.record("a", "k", 1)

    assert (await waiting).payload == 1


async def test_a_record_that_is_no_json_is_dropped_counted_and_harms_no_other(
    log: EventLog,
) -> None:
    log.record("a", "k", object())
    log.record("not a topic!", "k", 1)
    log.record("a", "k", lambda: 1 / 0)
    log.record("a", "k", "good")
    await log.flush()

    assert [e.payload for e in await log.read("a")] == ["good"]
    assert log.dropped == 3


HOSTILE_TOPICS = [
    "", " ", "a b", "../../x", "/etc/x", "a/b", "a\x00b", "a\nb", "é", "\ud800", "%s", "<script>",
    "'; DROP TABLE events; --", "a" * 201, "\u202e", "x:y", "a\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("topic", HOSTILE_TOPICS)
async def test_names_that_are_no_topics_are_refused(log: EventLog, topic: str) -> None:
    with pytest.raises(InvalidOption, match="topic"):
        await log.emit(topic, "k", 1)
    with pytest.raises(InvalidOption, match="topic"):
        await log.read(topic)


@pytest.mark.parametrize("topic", [".", "..", "con", "default", "a" * 200, "A", "-", "a.jsonl"])
async def test_odd_names_that_are_topics_work(log: EventLog, topic: str) -> None:
    await log.emit(topic, "k", topic)

    assert [e.payload for e in await log.read(topic)] == [topic]


async def test_topics_that_differ_in_case_differ(log: EventLog) -> None:
    await log.emit("Case", "k", 1)
    await log.emit("case", "k", 2)

    assert [e.payload for e in await log.read("Case")] == [1]
    assert [e.payload for e in await log.read("case")] == [2]


@pytest.mark.parametrize(
    "payload",
    [
        "a\x00b", {"\x00": "\x00"}, "\u2028\u2029", "\x1b[2J", "𝔘", "", None, [], {}, -(2**63),
        2**63, 2**64, 0.1, 1e308, {"": {"": ""}}, "'; DROP TABLE events; --", "{0} %s $(id)",
        [[[[1]]]],
    ],
)  # fmt: skip
async def test_odd_payloads_come_back_equal(log: EventLog, payload: Any) -> None:
    await log.emit("a", "k", payload, {"h\x00": payload})

    [found] = await log.read("a")

    assert found.payload == payload
    assert found.headers == {"h\x00": payload}


@pytest.mark.parametrize(
    "payload",
    ["\ud800", {"\ud800": 1}, float("nan"), float("inf"), [1, {"a": float("nan")}], object()],
)
async def test_what_json_cannot_hold_is_refused(log: EventLog, payload: Any) -> None:
    with pytest.raises(InvalidOption, match="payload"):
        await log.emit("a", "k", payload)
    assert await log.head("a") == 0


@pytest.mark.parametrize("kind", ["", "a\x00", "a\nb", "\ud800", "k" * 129, 7, None])
async def test_kinds_are_short_printable_text(log: EventLog, kind: Any) -> None:
    with pytest.raises(InvalidOption, match="kind"):
        await log.emit("a", kind, 1)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


async def test_deep_payloads_are_refused_at_a_stated_depth(log: EventLog) -> None:
    await log.emit("a", "k", nested(200))

    for depth in (201, 2000, 100_000):
        with pytest.raises(InvalidOption, match="200 levels"):
            await log.emit("a", "k", nested(depth))
    assert len(await log.read("a")) == 1


async def test_ten_megabytes_work_and_more_is_refused(log: EventLog) -> None:
    big = "x" * (10 * 1024 * 1024 - 2)
    await log.emit("a", "k", big)

    [found] = await log.read("a")

    assert found.payload == big
    with pytest.raises(InvalidOption, match="10,485,760 bytes"):
        await log.emit("a", "k", big + "x")


async def test_large_records_are_read_in_small_pages(log: EventLog) -> None:
    for n in range(6):
        await log.emit("a", "k", [n, "x" * 5_000_000])

    page, _ = await log._reader.page("a", 0, 500)

    assert len(page) < 6
    assert [e.payload[0] for e in await log.read("a")] == list(range(6))


async def test_the_newest_of_large_records_are_those_that_fit_in_a_page(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(8):
        await log.emit("a", "k", [n, "x" * 1000])
    few = await log.store.run(lambda: newest("a", 3), write=False)
    monkeypatch.setattr(events, "PAGE_BYTES", 3000)

    found = await log.store.run(lambda: newest("a", 8), write=False)

    assert ids(few) == [6, 7, 8]
    assert ids(found) == [7, 8]


async def test_the_newest_records_are_found_before_offsets_that_were_skipped(log: EventLog) -> None:
    await log.append([draft("a", "k", n) for n in range(4)])
    await log.store.run(lambda: skip_offsets("a", 2))

    assert ids(await log.store.run(lambda: newest("a", 4), write=False)) == [3, 4]


@pytest.mark.parametrize("after", [-1, True, 1.0, "1", None, 2**62])
async def test_offsets_are_whole_numbers(log: EventLog, after: Any) -> None:
    with pytest.raises(InvalidOption, match="after"):
        await log.read("a", after=after)


async def test_the_stores_time_never_goes_back(log: EventLog) -> None:
    first = await log.store.run(now)

    assert await log.store.run(now) >= first
    assert await log.store.run(now, write=False) >= first


async def test_an_unknown_statement_breaks_only_its_own_operation(log: EventLog) -> None:
    def wrong() -> Operation[Rows]:
        return (yield ask("no_such_query"))

    with pytest.raises(KeyError):
        await log.store.run(wrong)
    assert (await log.emit("a", "k", 1)).id == 1


async def test_a_closed_store_says_so(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        log = runtime.event_log
        await log.emit("a", "k", 1)

    with pytest.raises(StorageError, match="closed"):
        await log.emit("a", "k", 2)


async def test_E1_what_was_emitted_is_there_when_the_store_is_opened_again(
    lasting_url: str,
) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        emitted = [await runtime.event_log.emit("a", "k", n) for n in range(3)]
        runtime.event_log.record("a", "late", "recorded")

    async with Runtime(storage=lasting_url) as runtime:
        found = await runtime.event_log.read("a")
        after = await runtime.event_log.emit("a", "k", "more")

    assert found[:3] == emitted
    assert found[3].payload == "recorded"
    assert after.id == 5


async def test_E2_offsets_go_on_after_a_trim_and_a_restart(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        await runtime.event_log.append([draft("a", "k", n) for n in range(3)])
        await runtime.event_log.trim("a", keep=0)

    async with Runtime(storage=lasting_url) as runtime:
        assert (await runtime.event_log.emit("a", "k", "more")).id == 4


async def test_two_runtimes_share_a_store(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as one:
        async with Runtime(storage=lasting_url) as two:
            news = two.event_log.subscribe("a")
            await news.ready()
            await one.event_log.emit("a", "k", 1)
            await two.event_log.emit("a", "k", 2)
            await one.event_log.emit("b", "k", 3)

            assert [(await anext(news)).payload for _ in range(2)] == [1, 2]
            assert [e.payload for e in await two.event_log.read("b")] == [3]
            assert (await two.event_log.emit("b", "k", 4)).id == 2


async def test_two_runtimes_may_open_a_new_store_at_the_same_moment(lasting_url: str) -> None:
    async def one(n: int) -> int:
        async with Runtime(storage=lasting_url) as runtime:
            return (await runtime.event_log.emit("a", "k", n)).id

    assert sorted(await asyncio.gather(*(one(n) for n in range(6)))) == [1, 2, 3, 4, 5, 6]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from("abc"), json_values), max_size=20))
def test_E3_any_interleaving_reads_back_as_a_model_of_lists(
    storage_url: str, steps: list[tuple[str, Any]]
) -> None:
    async def main() -> None:
        async with Runtime(storage=storage_url) as runtime:
            log = runtime.event_log
            model: dict[str, list[Any]] = {}
            start = {topic: await log.head(topic) for topic in "abc"}
            await asyncio.gather(*(log.emit(topic, "k", value) for topic, value in steps))
            for topic, value in steps:
                model.setdefault(topic, []).append(value)
            for topic in "abc":
                found = await log.read(topic, after=start[topic])
                assert [e.payload for e in found] == model.get(topic, [])
                assert ids(found) == [start[topic] + 1 + n for n in range(len(found))]

    asyncio.run(main())


async def test_the_store_of_a_runtime_is_one(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        assert runtime.service(Store) is runtime.event_log.store
        expected = "memory" if storage_url == "memory://" else "full"
        assert runtime.service(Store).durability == expected


async def test_offsets_that_were_skipped_are_never_given_away(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        await runtime.event_log.emit("a", "k", 1)
        await runtime.service(Store).run(lambda: skip_offsets("a", 5))
        await runtime.service(Store).run(lambda: skip_offsets("new", 5))

    async with Runtime(storage=lasting_url) as runtime:
        assert (await runtime.event_log.emit("a", "k", 2)).id == 7
        assert (await runtime.event_log.emit("new", "k", 2)).id == 6


async def test_a_store_is_used_and_closed_where_no_thread_can_be_started_any_more(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python 3.12 has it when the program ends inside the block of a runtime."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await store.run(lambda: append([draft("t", "one", {})]))
        monkeypatch.setattr(threading.Thread, "start", refuse)

        several = [store.run(lambda: append([draft("t", "more", {})])) for _ in range(3)]

        assert len(await asyncio.gather(*several)) == 3
    monkeypatch.undo()
    async with Runtime(storage=lasting_url) as runtime:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageError, match="this program is ending"):
            await runtime.service(Store).run(lambda: append([draft("t", "late", {})]))
