"""Folding the log again: what it gives is what the index holds, or is put there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import apsw
import pytest

from harn import Event, Runtime, StorageError, worker_queue
from harn.eventlog import EventLog
from harn.storage import Operation, Store, Table, ask, draft
from harn.storage.indexes import INDEXES
from harn.storage.log import append, compare, rebuild
from harn.storage.queries import Query, load_queries
from harn.topics import STORED_VALUES


class Tally:
    """A toy index: how often each kind was seen in the topics that start with `tally`."""

    name = "tally"
    keeps_latest = False
    tables: tuple[Table, ...] = (
        Table("tally", ("kind", "seen"), "dump_tally", "clear_tally", "restore_tally"),
    )

    def wants(self, topic: str) -> bool:
        return topic.startswith("tally")

    def fold(self, event: Event) -> Operation[None]:
        yield ask("make_tally")
        yield ask("count_kind", kind=event.kind)

    def held(self, topic: str, below: int, dedupe_ms: int) -> Operation[int | None]:
        rows = yield ask("dump_tally")
        return 3 if ("held", 1) in rows else None

    def forget(self, topic: str, below: int) -> Operation[None]:
        return
        yield


MAKE = "CREATE TABLE IF NOT EXISTS tally (kind text PRIMARY KEY, seen bigint NOT NULL)"
COUNT = """INSERT INTO tally VALUES ({kind}, 1)
           ON CONFLICT (kind) DO UPDATE SET seen = tally.seen + 1"""
COMMON = {
    "make_tally": MAKE,
    "dump_tally": "SELECT kind, seen FROM tally ORDER BY kind",
    "clear_tally": "DELETE FROM tally",
    "spoil_tally": "UPDATE tally SET seen = seen + 5 WHERE kind = 'a'",
}
SQLITE = {
    **COMMON,
    "count_kind": COUNT.format(kind=":kind"),
    "restore_tally": "INSERT INTO tally VALUES (?1, ?2)",
}
POSTGRES = {
    **COMMON,
    "count_kind": COUNT.format(kind="%(kind)s"),
    "restore_tally": "INSERT INTO tally SELECT * FROM unnest(%(kind)s::text[], %(seen)s::bigint[])",
}


@pytest.fixture
def tally(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally]:
    for dialect, queries in (("sqlite", SQLITE), ("postgres", POSTGRES)):
        for name, text in queries.items():
            monkeypatch.setitem(load_queries(dialect), name, Query(text, wants_now=False))
    index = Tally()
    kept, INDEXES[:] = [*INDEXES], [index]
    yield index
    INDEXES[:] = kept


@pytest.fixture
async def log(storage_url: str, tally: Tally) -> AsyncIterator[EventLog]:
    async with Runtime(storage=storage_url) as runtime:
        await runtime.event_log.store.run(lambda: one("make_tally"))
        yield runtime.event_log


def one(name: str) -> Operation[list[tuple[object, ...]]]:
    return (yield ask(name))


def count(topic: str, kind: str) -> Operation[None]:
    yield from append([draft(topic, kind, None)])
    yield ask("count_kind", kind=kind)


async def test_an_index_kept_by_the_same_transactions_equals_the_fold(
    log: EventLog, tally: Tally
) -> None:
    for topic, kind in (("tally.1", "a"), ("tally.2", "b"), ("tally.1", "a")):
        await log.store.run(partial(count, topic, kind))

    assert await log.store.run(lambda: one("dump_tally")) == [("a", 2), ("b", 1)]
    assert await log.store.run(lambda: compare([tally])) == []


async def test_a_spoilt_index_is_seen_and_mended(log: EventLog, tally: Tally) -> None:
    for kind in ("a", "b", "a"):
        await log.store.run(partial(count, "tally", kind))
    await log.store.run(lambda: one("spoil_tally"))

    found = await log.store.run(lambda: compare([tally]))
    rebuilt = await log.store.run(lambda: rebuild([tally]))

    assert {(each.kind, each.row) for each in found} == {("missing", ("a", 2)), ("extra", ("a", 7))}
    assert rebuilt == {"tally": 2}
    assert await log.store.run(lambda: compare([tally])) == []


@pytest.mark.parametrize(
    ("topic", "kind", "payload"),
    [
        ("worker.q", "trigger_dispatch", {"priority": "normal", "max_attempts": "five"}),
        ("worker.q", "trigger_dispatch", {"priority": "normal", "max_attempts": 10**30}),
        ("worker.q.claims", "keys_changed", {"fairness_key": "tenant", "cap": "two"}),
        (STORED_VALUES, "state_set", {"space": "s", "key": "k", "version": None, "value": 1}),
    ],
)
async def test_a_record_that_no_table_accepts_harms_no_other(
    storage_url: str, topic: str, kind: str, payload: dict[str, Any]
) -> None:
    async with Runtime(storage=storage_url) as runtime:
        await worker_queue("q").enqueue(1)
        odd = await runtime.event_log.emit(topic, kind, payload, {"queue": "q"})

        found = await runtime.service(Store).run(compare)
        await runtime.service(Store).run(rebuild)

        assert [(each.kind, each.row[:2]) for each in found] == [("unreadable", (topic, odd.id))]
        assert (await worker_queue("q").summary()).ready == 1


class NoMemory(Tally):
    """The toy index in a process whose memory does not suffice for the records of `tally.large`."""

    def fold(self, event: Event) -> Operation[None]:
        if event.topic == "tally.large":
            raise apsw.NoMemError("out of memory")
        yield from super().fold(event)


async def test_a_rebuild_that_lacks_memory_fails_and_leaves_no_record_out(log: EventLog) -> None:
    for topic in ("tally", "tally.large"):
        await log.store.run(partial(count, topic, "a"))

    with pytest.raises((StorageError, apsw.NoMemError), match="out of memory"):
        await log.store.run(lambda: rebuild([NoMemory()]))

    assert await log.store.run(lambda: one("dump_tally")) == [("a", 2)]


async def test_a_failed_operation_leaves_log_and_index_alike(log: EventLog, tally: Tally) -> None:
    def fails() -> Operation[None]:
        yield from count("tally", "a")
        raise LookupError

    await log.store.run(lambda: count("tally", "a"))
    with pytest.raises(LookupError):
        await log.store.run(fails)

    assert await log.store.run(lambda: one("dump_tally")) == [("a", 1)]
    assert await log.head("tally") == 1
    assert await log.store.run(lambda: compare([tally])) == []


async def test_E11_a_trim_keeps_what_an_index_says_is_not_settled(log: EventLog) -> None:
    for kind in ("a", "b", "held", "c"):
        await log.store.run(partial(count, "tally", kind))

    assert await log.trim("tally", keep=0) == 2
    assert [e.kind for e in await log.read("tally")] == ["held", "c"]
    assert await log.trim("tally", keep=0, force=True) == 2


async def test_a_second_process_folds_what_the_first_one_wrote(
    lasting_url: str, tally: Tally
) -> None:
    async with Runtime(storage=lasting_url) as one_, Runtime(storage=lasting_url) as two:
        for runtime in (one_, two):
            await runtime.event_log.store.run(lambda: one("make_tally"))
        for runtime, kind in ((one_, "a"), (two, "b"), (one_, "a"), (two, "a")):
            await runtime.event_log.store.run(partial(count, "tally", kind))

        for runtime in (one_, two):
            store = runtime.event_log.store
            assert await store.run(lambda: one("dump_tally")) == [("a", 3), ("b", 1)]
            assert await store.run(lambda: compare([tally])) == []
