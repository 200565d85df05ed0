"""The triggers' operations, on every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import ANY

import pytest

from harn import Runtime, topics
from harn.storage import Store, ask, draft
from harn.storage.log import compare, rebuild, trim
from harn.storage.triggers import (
    CircuitRow,
    DedupeClaim,
    Delivery,
    GateChange,
    Mark,
    NewEvent,
    at_circuit,
    at_gate,
    change_letter,
    circuits,
    cron_last,
    dead_letter,
    dead_letters,
    give_up,
    keep_alive,
    leave,
    note_retry,
    pending,
    settle_envelope,
    take_in,
    take_over,
)
from harn.testing import FakeClock

DAY = 86_400_000


@pytest.fixture
async def store(storage_url: str, clock: FakeClock) -> AsyncIterator[Store]:
    async with Runtime(storage=storage_url, clock=clock) as runtime:
        yield runtime.service(Store)


def new(
    id: str, *, owner: str = "me", key: str | None = None, digest: str = "d", **fields: Any
) -> NewEvent:
    claim = None if key is None else DedupeClaim("webhook:hook", key, digest, DAY)
    fields.setdefault("deliveries", (Delivery("a", 1), Delivery("b", 1)))
    return NewEvent(id=id, record={"id": id}, owner=owner, claim=claim, **fields)


def outcome(envelope: int) -> Any:
    return [draft(topics.TRIGGER_OUTBOX, "dispatch_succeeded", {"envelope": envelope})]


async def folds_to_the_same(store: Store) -> bool:
    return await store.run(compare) == []


async def test_S26_a_delivery_is_taken_in_once_with_its_claim(store: Store) -> None:
    first = await store.run(partial(take_in, new("e1", key="k")))
    again = await store.run(partial(take_in, new("e2", key="k")))
    other = await store.run(partial(take_in, new("e3", key="k", digest="x")))

    assert len(first.envelopes) == 2 and None not in first.envelopes
    assert (again.known_as, again.conflict, again.envelopes) == ("e1", False, ())
    assert (other.known_as, other.conflict) == ("e1", True)
    assert (await store.run(pending))[0] == 2
    assert await folds_to_the_same(store)


async def test_a_claim_ends_with_its_time(store: Store, clock: FakeClock) -> None:
    await store.run(partial(take_in, new("e1", key="k")))
    await clock.advance("1d")
    await store.run(partial(keep_alive, "me"))

    again = await store.run(partial(take_in, new("e2", key="k")))

    assert again.known_as is None
    assert await folds_to_the_same(store)


async def test_a_binding_may_know_what_the_event_does_not(store: Store) -> None:
    own = DedupeClaim("binding:b", "order-7", "", DAY)
    deliveries = (Delivery("a", 1), Delivery("b", 1, own))
    await store.run(partial(take_in, new("e1", deliveries=deliveries)))

    second = await store.run(partial(take_in, new("e2", deliveries=deliveries)))

    assert second.envelopes[0] is not None
    assert second.envelopes[1] is None


async def test_only_the_owner_settles_an_envelope_and_only_once(store: Store) -> None:
    envelope = (await store.run(partial(take_in, new("e1")))).envelopes[0]
    assert envelope is not None

    assert not await store.run(partial(note_retry, envelope, "another", 2, 0, "boom"))
    assert not await store.run(partial(settle_envelope, envelope, "another", outcome(envelope)))
    assert await store.run(partial(settle_envelope, envelope, "me", outcome(envelope)))
    assert not await store.run(partial(settle_envelope, envelope, "me", outcome(envelope)))
    assert (await store.run(pending))[0] == 1
    assert await folds_to_the_same(store)


async def test_what_a_dead_owner_leaves_is_taken_over_where_it_stood(
    store: Store, clock: FakeClock
) -> None:
    envelope = (await store.run(partial(take_in, new("e1", owner="old")))).envelopes[0]
    assert envelope is not None
    await store.run(partial(note_retry, envelope, "old", 3, 60_000, "boom"))
    assert await store.run(partial(take_over, "new", frozenset({"a"}))) == []

    await clock.advance("31s")
    [orphan] = await store.run(partial(take_over, "new", frozenset({"a"})))

    assert (orphan.envelope, orphan.attempt, orphan.taken) == (envelope, 3, 2)
    assert await store.run(partial(take_over, "third", frozenset({"a"}))) == []
    assert not await store.run(partial(settle_envelope, envelope, "old", outcome(envelope)))
    assert await folds_to_the_same(store)


async def test_events_of_triggers_that_are_gone_hold_up_no_takeover(store: Store) -> None:
    gone = tuple(Delivery("gone", 1) for _ in range(1001))
    await store.run(partial(take_in, new("e1", owner="old", deliveries=gone)))
    last = (Delivery("a", 1), Delivery("b", 1))
    a, b = (await store.run(partial(take_in, new("e2", owner="old", deliveries=last)))).envelopes
    await store.run(partial(leave, "old"))

    alone = await store.run(partial(take_over, "new", frozenset({"a", "b"}), only=b))
    others = await store.run(partial(take_over, "new", frozenset({"a", "b"})))

    assert [[each.envelope for each in found] for found in (alone, others)] == [[b], [a]]


async def test_an_owner_that_leaves_is_not_waited_for(store: Store) -> None:
    await store.run(partial(take_in, new("e1", owner="old")))
    await store.run(partial(leave, "old"))

    await store.run(partial(keep_alive, "old"))  # a renewal that was late
    found = await store.run(partial(take_over, "new", frozenset({"a", "b"})))

    assert len(found) == 2
    assert await folds_to_the_same(store)


async def test_only_owners_that_died_over_an_envelope_count(store: Store, clock: FakeClock) -> None:
    await store.run(partial(take_in, new("e1", owner="first", deliveries=(Delivery("a", 1),))))
    taken = []

    for before, now in ("first", "second"), ("second", "third"), ("third", "fourth"):
        if before == "second":
            await clock.advance("31s")  # it dies
        else:
            await store.run(partial(leave, before))
            await store.run(partial(keep_alive, "another"))  # which forgets owners that are gone
        await store.run(partial(trim, topics.TRIGGER_OWNERS, keep=0))
        [orphan] = await store.run(partial(take_over, now, frozenset({"a"})))
        taken.append(orphan.taken)

    assert taken == [1, 2, 2]
    assert await folds_to_the_same(store)


async def test_T3_an_instant_is_taken_in_once_and_never_goes_back(store: Store) -> None:
    fired = [
        await store.run(partial(take_in, new(f"e{n}", instant=("nightly", at))))
        for n, at in enumerate((5, 5, 4, 6))
    ]

    assert [each.late for each in fired] == [False, True, True, False]
    assert await store.run(partial(cron_last, "nightly")) == 6
    await store.run(partial(give_up, "nightly", 9))
    await store.run(partial(give_up, "nightly", 3))
    assert await store.run(partial(cron_last, "nightly")) == 9
    assert await folds_to_the_same(store)


def enter(marks: list[Mark], now: int, *, most: int) -> Sequence[GateChange]:
    held = sum(mark.held for mark in marks)
    return [GateChange("concurrency_acquired", "add", held=True)] if held < most else []


async def test_a_gate_decides_alone_and_forgets_dead_owners(store: Store, clock: FakeClock) -> None:
    ask_in = partial(enter, most=1)
    [ticket] = await store.run(lambda: at_gate("g", "one", 1, ask_in))
    assert await store.run(lambda: at_gate("g", "two", 2, ask_in)) == []

    await clock.advance("31s")
    [taken] = await store.run(lambda: at_gate("g", "two", 2, ask_in))
    await store.run(
        lambda: at_gate(
            "g", "two", 2, lambda m, n: [GateChange("concurrency_released", "drop", (taken,))]
        )
    )

    assert taken > ticket
    assert await store.run(lambda: at_gate("other", "one", 1, ask_in)) != []
    assert await folds_to_the_same(store)


async def test_a_gate_shows_the_first_that_waits_even_behind_those_of_dead_owners(
    store: Store, clock: FakeClock
) -> None:
    seen: list[tuple[int, bool]] = []

    def add(rank: int, held: bool = False) -> Any:
        return lambda marks, now: [GateChange("concurrency_waiting", "add", rank=rank, held=held)]

    def look(marks: list[Mark], now: int) -> Sequence[GateChange]:
        seen[:] = [(mark.rank, mark.held) for mark in marks]
        return []

    for owner, rank, held in (("two", 9, True), ("one", 3, False), ("one", 2, False)):
        await store.run(partial(at_gate, "g", owner, 1, add(rank, held)))
    for rank in (6, 5):
        await store.run(partial(at_gate, "g", "two", 2, add(rank)))
    await store.run(lambda: at_gate("g", "three", 3, look, only_first=True))
    assert sorted(seen) == [(2, False), (9, True)]

    await clock.advance("20s")
    await store.run(partial(keep_alive, "two"))
    await clock.advance("11s")  # now one is gone, and two is not
    await store.run(lambda: at_gate("g", "three", 3, look, only_first=True))
    assert sorted(seen) == [(5, False), (6, False), (9, True)]
    await store.run(lambda: at_gate("g", "three", 3, look, only_first=True))
    assert sorted(seen) == [(5, False), (9, True)]
    assert await folds_to_the_same(store)


async def test_marks_that_left_their_window_are_cleared_away(
    store: Store, clock: FakeClock
) -> None:
    def pass_through(marks: list[Mark], now: int) -> Sequence[GateChange]:
        return [GateChange("throttle_acquired", "add", prune_ms=60_000)]

    def dump() -> Any:
        return (yield ask("trigger_dump_marks"))

    for n in range(5):
        await store.run(lambda: at_gate(f"throttle-{n}", "me", 1, pass_through))
    await store.run(partial(keep_alive, "me"))
    before = len(await store.run(dump))
    await clock.advance("60s")
    await store.run(partial(keep_alive, "me"))

    assert (before, await store.run(dump)) == (5, [])
    assert await folds_to_the_same(store)


async def test_a_circuit_keeps_what_was_decided(store: Store) -> None:
    def fail(row: CircuitRow, now: int) -> tuple[int, CircuitRow]:
        return row.failures, CircuitRow(row.failures + 1)

    seen = [await store.run(lambda: at_circuit("local:x", fail)) for _ in range(3)]
    await store.run(lambda: at_circuit("local:x", lambda row, now: (None, CircuitRow())))

    assert seen == [0, 1, 2]
    assert await store.run(lambda: at_circuit("local:x", fail)) == 0
    assert await folds_to_the_same(store)


async def test_a_trim_keeps_the_circuits_that_are_open(store: Store) -> None:
    def fail(row: CircuitRow, now: int) -> tuple[None, CircuitRow]:
        return None, CircuitRow(row.failures + 1, now + 1000)

    for name in ("broken", "mended", "broken"):
        await store.run(partial(at_circuit, name, fail))
    await store.run(partial(at_circuit, "mended", lambda row, now: (None, CircuitRow())))

    trimmed = await store.run(partial(trim, topics.TRIGGER_FLOW, keep=0))

    assert trimmed == 2
    assert await store.run(circuits) == [("broken", CircuitRow(2, ANY))]
    assert await folds_to_the_same(store)


def letter(state: str) -> Any:
    payload = {"id": "dlq_1", "event_id": "e1", "binding_id": "a", "state": state}
    return draft(topics.TRIGGER_DLQ, "dlq_entry", payload)


async def test_a_dead_letter_changes_its_state_once(store: Store) -> None:
    envelope = (await store.run(partial(take_in, new("e1")))).envelopes[0]
    assert envelope is not None
    await store.run(
        partial(settle_envelope, envelope, "me", [*outcome(envelope), letter("pending")])
    )

    count, [found] = await store.run(dead_letters)
    done = [
        await store.run(partial(change_letter, "dlq_1", "pending", letter("resolved")))
        for _ in range(2)
    ]

    assert (count, found.id, found.event_id) == (1, "dlq_1", "e1")
    assert done == [True, False]
    assert (await store.run(dead_letters))[0] == 0
    assert (await store.run(partial(dead_letter, "dlq_1"))).state == "resolved"  # type: ignore[union-attr]
    assert await store.run(partial(dead_letter, "no such")) is None
    assert await folds_to_the_same(store)


async def test_the_tables_can_be_rebuilt_from_the_log(store: Store) -> None:
    for n in range(5):
        await store.run(partial(take_in, new(f"e{n}", key=f"k{n}", instant=("c", n + 1))))
        await store.run(lambda: at_gate(f"g{n}", "me", 1, partial(enter, most=1)))
    before = await store.run(pending)

    await store.run(rebuild)

    assert await store.run(pending) == before
    assert (await store.run(partial(take_in, new("x", key="k0")))).known_as == "e0"
    assert await folds_to_the_same(store)
