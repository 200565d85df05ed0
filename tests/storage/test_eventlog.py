"""The event log's own manners: fake time, audits that cannot be written, bounds, names, URLs."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any, ClassVar

import apsw
import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from harn import (
    Event,
    InvalidOption,
    Runtime,
    StorageBusy,
    StorageError,
    current_runtime,
    event_log_emit,
    event_log_read,
    event_log_subscribe,
)
from harn.eventlog import batched_writer, memory_writer
from harn.storage import Store, check_topic, draft, read_url
from harn.storage.engines.sqlite.sqlite_driver import SqliteDriver
from harn.storage.log.events import now
from harn.telemetry.metrics import Metrics
from harn.testing import FakeClock, fresh_runtime
from harn.topics import check_queue_name, queue_topics
from tests.sweep import Run, sweep

START = 1_767_225_600_000


async def test_a_fake_clock_is_the_stores_clock_on_every_engine(storage_url: str) -> None:
    clock = FakeClock()
    async with fresh_runtime(storage=storage_url, clock=clock) as runtime:
        first = await runtime.event_log.emit("a", "k", 1)
        await clock.advance("90m")
        second = await runtime.event_log.emit("a", "k", 2)
        runtime.event_log.record("a", "k", 3)

        times = [event.occurred_at_ms for event in await runtime.event_log.read("a")]
        assert await runtime.service(Store).run(now) == START + 5_400_000

    assert (first.occurred_at_ms, second.occurred_at_ms) == (START, START + 5_400_000)
    assert times == [START, START + 5_400_000, START + 5_400_000]


async def test_a_fake_time_is_not_remembered_by_the_store(lasting_url: str) -> None:
    async with fresh_runtime(storage=lasting_url, clock=FakeClock("2126-01-01T00:00:00Z")) as far:
        await far.event_log.emit("a", "k", 1)
        await far.service(Store).run(now)

    async with Runtime(storage=lasting_url) as runtime:
        event = await runtime.event_log.emit("a", "k", 2)
        assert event.occurred_at_ms < 4_000_000_000_000


async def test_advancing_a_fake_clock_waits_for_the_store(storage_url: str) -> None:
    clock = FakeClock()
    async with fresh_runtime(storage=storage_url, clock=clock) as runtime:
        emitting = asyncio.ensure_future(runtime.event_log.emit("a", "k", 1))

        await clock.advance("1s")

        assert emitting.done()


async def test_the_stores_clock_never_goes_back(tmp_path: Path) -> None:
    class Wavering(FakeClock):
        is_fake = False

    clock = Wavering()
    for scheme in ("memory://", f"sqlite:///{tmp_path}/x.sqlite", f"file:///{tmp_path}/log"):
        async with fresh_runtime(storage=scheme, clock=clock) as runtime:
            seen = []
            for elapsed in (10.0, 5.0, 7.0, 20.0):
                clock._elapsed = elapsed
                seen.append((await runtime.event_log.emit("a", "k", 1)).occurred_at_ms)
                await runtime.service(Store).run(now)
                seen.append(await runtime.service(Store).run(now))

            assert [ms - START for ms in seen] == [10_000] * 6 + [20_000] * 2, scheme


async def test_the_verbs_use_the_current_runtimes_log(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        news = event_log_subscribe("a")
        emitted = await event_log_emit("a", "k", {"x": 1}, {"h": 2})

        assert await event_log_read("a") == [emitted]
        assert await anext(news) == emitted
        assert current_runtime().event_log is runtime.event_log


async def test_a_full_buffer_drops_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_writer, "MOST_BUFFERED", 10)
    async with Runtime(storage=f"sqlite:///{tmp_path}/x.sqlite") as runtime:
        log = runtime.event_log
        for n in range(25):
            log.record("a", "k", n)

        assert [event.payload for event in await log.read("a")] == list(range(10))
        assert log.dropped == 15
        assert "harn_event_log_dropped_total 15.0" in runtime.service(Metrics).exposition()


async def test_a_topic_in_memory_keeps_the_newest_and_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_writer, "KEPT", 100)
    async with Runtime() as runtime:
        log = runtime.event_log
        for n in range(1, 251):
            log.record("a", "k", n)
        for n in range(251, 501):
            await log.emit("a", "k", n)

        events = await log.read("a")

    assert 100 <= len(events) <= 210
    assert all(event.id == event.payload for event in events)
    assert events[-1].id == 500


async def test_O3_records_wait_for_a_store_that_is_away_and_fail_no_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.sqlite"
    async with Runtime(storage=f"sqlite:///{path}?busy_timeout=1ms") as runtime:
        log = runtime.event_log
        await log.emit("a", "k", "before")
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING, "harn.eventlog"):
            for word in ("patient", "and", "in", "order"):
                log.record("a", "k", word)
            with pytest.raises(StorageBusy):
                await log.emit("b", "k", "impatient")
            while "audit records wait" not in caplog.text:
                await asyncio.sleep(0.01)
        other.execute("ROLLBACK")
        other.close()

        kept = [event.payload for event in await log.read("a")]
        assert kept == ["before", "patient", "and", "in", "order"]
        assert log.dropped == 0


class Numbered(msgspec.Struct, frozen=True):
    """The payload of `Noted`."""

    n: Any


class Noted(msgspec.Struct, frozen=True):
    """A receipt with a number."""

    n: Any
    at: int = START
    kind: ClassVar[str] = "receipt"
    headers: ClassVar[dict[str, str]] = {"schema": "v1"}

    def __call__(self) -> Numbered:
        return Numbered(self.n)


async def test_receipts_are_read_in_order_with_other_records(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        log = runtime.event_log
        note, other = log.recorder("a"), log.recorder("b")

        note(Noted(1))
        note(Noted(2))
        log.record("a", "k", {"n": 3})
        note(Noted(4))
        other(Noted(1))
        emitting = asyncio.ensure_future(log.emit("a", "k", {"n": 5}))
        await asyncio.sleep(0)
        note(Noted(6))
        await emitting
        note(Noted(7))

        events = await log.read("a")
        assert [event.payload["n"] for event in events] == [1, 2, 3, 4, 5, 6, 7]
        assert (await emitting).id == 5
        assert {e.occurred_at_ms for e in events if e.kind == "receipt"} == {START}
        assert {tuple(e.headers) for e in events if e.kind == "receipt"} == {("schema",)}
        assert [event.payload["n"] for event in await log.read("b")] == [1]


async def test_receipts_that_cannot_be_written_harm_no_others(
    lasting_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        log = runtime.event_log
        note = log.recorder("a")

        for n in (1, "\udc80", object(), 2):
            note(Noted(n))
        await log.flush()
        note(Noted(object()))
        await log.flush()

        assert [event.payload["n"] for event in await log.read("a")] == [1, 2]
        assert log.dropped == 3
        assert caplog.text.count("an audit record for a was dropped") == 3


async def test_receipts_wait_for_a_store_that_is_away(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    async with Runtime(storage=f"sqlite:///{path}?busy_timeout=1ms") as runtime:
        log = runtime.event_log
        await log.emit("a", "k", {"n": 0})
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        for n in (1, 2):
            log.recorder("a")(Noted(n))
        log.write_along()
        with pytest.raises(StorageBusy):
            await log.emit("b", "k", "impatient")
        other.execute("ROLLBACK")
        other.close()
        log.recorder("a")(Noted(3))

        assert [event.payload["n"] for event in await log.read("a")] == [0, 1, 2, 3]
        assert log.dropped == 0


async def test_too_many_receipts_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_writer, "MOST_BUFFERED", 10)
    async with Runtime(storage=f"sqlite:///{tmp_path}/x.sqlite") as runtime:
        log = runtime.event_log
        note = log.recorder("a")
        for n in range(25):
            note(Noted(n))

        assert [event.payload["n"] for event in await log.read("a")] == list(range(10))
        assert log.dropped == 15
        note(Noted(25))
        assert len(await log.read("a")) == 11


async def test_receipts_wait_some_turns_for_a_request_to_be_written_along_with(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        log = runtime.event_log
        await log.emit("b", "k", 1)
        asked: list[Any] = []
        submit = log.store.submit

        def counted(recipe: Any, **options: Any) -> Any:
            asked.append(recipe)
            return submit(recipe, **options)

        monkeypatch.setattr(log.store, "submit", counted)
        note = log.recorder("a", turns=10)

        note(Noted(1))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asked
        log.write_along()
        assert len(asked) == 1, "at once, so that a request of the same turn shares the commit"
        note(Noted(2))
        for _ in range(20):
            await asyncio.sleep(0)
        await log.flush()

        assert [event.payload["n"] for event in await log.read("a")] == [1, 2]


async def test_what_cannot_be_written_at_the_end_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x").mkdir()
    with caplog.at_level(logging.WARNING, "harn.eventlog"):
        async with Runtime(storage=f"sqlite:///{tmp_path}/x") as runtime:
            log = runtime.event_log
            log.record("a", "k", 1)

    assert log.dropped == 1
    assert "1 audit records could not be written" in caplog.text
    assert caplog.text.count("audit records wait for the store") == 1, "told once, not each time"


async def test_records_wait_for_what_the_next_turn_of_the_loop_asks_the_store_for(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        log, store = runtime.event_log, runtime.service(Store)
        await log.emit("a", "k", 0)
        asked: list[str] = []
        submit = store.submit

        def noted(recipe: Any, **options: Any) -> Any:
            asked.append("records")
            return submit(recipe, **options)

        monkeypatch.setattr(store, "submit", noted)
        log.record("a", "k", 1)
        await asyncio.sleep(0)
        asked.append("a request of the next turn")
        await log.flush()

        assert asked == ["a request of the next turn", "records"]
        assert [event.payload for event in await log.read("a")] == [0, 1]


async def test_an_emit_cancelled_before_its_commit_was_not_written(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        log = runtime.event_log
        first = asyncio.ensure_future(log.emit("a", "k", "first"))
        second = asyncio.ensure_future(log.emit("a", "k", "second"))
        await asyncio.sleep(0)  # the first is on its way, the second waits for the next commit
        second.cancel()
        await first
        await asyncio.wait((second,))

        assert [event.payload for event in await log.read("a")] == ["first"]


async def test_an_empty_append_does_nothing(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        assert await runtime.event_log.append([]) == []


async def test_streaming_yields_what_reading_returns(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        await runtime.event_log.append([draft("a", "k", n) for n in range(1200)])

        streamed = [event.id async for event in runtime.event_log.stream("a", after=100)]

    assert streamed == list(range(101, 1201))


async def test_records_of_the_weaker_class_are_synced_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harn.storage.engines.sqlite import writer_thread

    monkeypatch.setattr(writer_thread, "SYNC_WITHIN", 0.01)
    async with Runtime(storage=f"sqlite:///{tmp_path}/x.sqlite?durability=normal") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        driver = runtime.service(Store).driver
        assert isinstance(driver, SqliteDriver)

        while driver._writer._unsynced:
            await asyncio.sleep(0.005)


@dataclasses.dataclass
class Point:
    x: int
    y: float | None = None


class Model:
    def model_dump(self, mode: str, by_alias: bool) -> dict[str, Any]:
        return {"mode": mode}


@pytest.mark.parametrize(
    ("given_", "kept"),
    [
        (Point(1), {"x": 1, "y": None}),
        (Model(), {"mode": "json"}),
        (Event(1, "t", "k", None, {}, 0), Event(1, "t", "k", None, {}, 0).as_dict()),
        ((1, None), [1, None]),
        ({"a": [None, 1.5]}, {"a": [None, 1.5]}),
    ],
)
async def test_what_can_say_itself_in_json_is_kept_as_json(given_: Any, kept: Any) -> None:
    async with Runtime() as runtime:
        assert (await runtime.event_log.emit("a", "k", given_)).payload == kept


@pytest.mark.parametrize("bad", [Point(1, float("nan")), (None, float("inf")), {"a": float("nan")}])
async def test_nan_is_found_wherever_it_hides(bad: Any) -> None:
    async with Runtime() as runtime:
        with pytest.raises(InvalidOption, match="NaN"):
            await runtime.event_log.emit("a", "k", bad)


@pytest.mark.parametrize("headers", [[], "x", 7, {1: "x"}, {"x": object()}, {"x": "y" * 70_000}])
async def test_headers_are_a_small_object(headers: Any) -> None:
    async with Runtime() as runtime:
        with pytest.raises(InvalidOption, match="headers"):
            await runtime.event_log.emit("a", "k", 1, headers)


names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=128)


@settings(deadline=None, max_examples=300)
@given(names, names)
def test_E10_queue_names_map_to_topics_without_collision(one: str, two: str) -> None:
    found = []
    for name in (one, two):
        try:
            topics = queue_topics(name)
        except InvalidOption:
            return
        found.append({topics.jobs, topics.claims, topics.responses})
        for topic in found[-1]:
            check_topic(topic)
        assert "worker.queues" not in found[-1]
        assert len(found[-1]) == 3

    assert one == two or not found[0] & found[1]


@pytest.mark.parametrize(
    "bad",
    ["", " ", "queues", "x.claims", "x.responses", "a\x00", "a\nb", "\ud800", "\u202e", "x" * 129,
     7, None, True],
)  # fmt: skip
def test_names_that_cannot_be_queues_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption, match="queue"):
        check_queue_name(bad)


def test_plain_queue_names_stand_for_themselves() -> None:
    for name in ("triage", "my_queue", "a.b-c", "x.claims.y", "-"):
        assert queue_topics(name).jobs == f"worker.{name}"


@pytest.mark.parametrize(
    "bad",
    [
        "sqlite://", "sqlite:///", "sqlite://x", "file:///", "sqlite:///x?durablity=normal",
        "sqlite:///x?durability=none", "sqlite:///x?busy_timeout=soon", "file://relative", "sqlite:///x?what",
    ],
)  # fmt: skip
async def test_bad_storage_urls_are_refused_with_what_is_accepted(bad: str) -> None:
    async with Runtime(storage=bad) as runtime:
        with pytest.raises(InvalidOption):
            runtime.service(Store)


def test_a_url_is_taken_apart() -> None:
    assert read_url("sqlite:///a/b.sqlite").path == Path("a/b.sqlite").absolute()
    assert read_url("sqlite:////a/b.sqlite").path == Path("/a/b.sqlite")
    assert read_url("file:////a?busy_timeout=2s").busy_ms == 2000
    assert read_url("file:////a").busy_ms == 5000
    place = read_url("postgres://u:p@h/db?schema=x&sslmode=require")
    assert (place.engine, place.rest) == ("postgresql", "postgresql://u:p@h/db?sslmode=require")


async def test_a_store_that_cannot_be_opened_opens_when_it_can(tmp_path: Path) -> None:
    blocker = tmp_path / "state"
    blocker.write_text("a file where a directory should be")
    async with Runtime(storage=f"sqlite:///{blocker}/x.sqlite") as runtime:
        with pytest.raises(StorageError):
            await runtime.event_log.emit("a", "k", 1)
        blocker.unlink()

        assert (await runtime.event_log.emit("a", "k", 1)).id == 1


async def test_G7_cancelling_anywhere_leaves_the_log_whole(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        log = runtime.event_log
        finished: list[int] = []

        async def case() -> None:
            news = log.subscribe("a")
            event = await log.emit("a", "k", 1)
            log.record("a", "k", 2)
            await log.append([draft("a", "k", 3), draft("b", "k", 3)])
            await log.read("a", after=event.id - 1, limit=2)
            await anext(news)
            finished.append(event.id)

        async def check(run: Run) -> None:
            ids = [event.id for event in await log.read("a")]
            assert ids == list(range(1, len(ids) + 1))
            both = [event for event in await log.read("a") if event.payload == 3]
            assert len(both) == len(await log.read("b"))

        assert await sweep(case, check) > 6
        assert len(finished) == 2
