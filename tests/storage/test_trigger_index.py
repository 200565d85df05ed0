"""The triggers' index is a fold of the log: rebuilding it from the records gives the same index."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from harn import Runtime, topics
from harn.storage import Store, draft
from harn.storage.log import compare
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

OWNERS = st.sampled_from(["one", "two", "three"])
WHICH = st.integers(0, 20)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take in"), OWNERS, WHICH),
        st.tuples(st.just("instant"), OWNERS, WHICH),
        st.tuples(st.sampled_from(["succeed", "retry", "die"]), OWNERS, WHICH),
        st.tuples(st.sampled_from(["alive", "leave", "take over"]), OWNERS, WHICH),
        st.tuples(st.sampled_from(["enter", "go out", "fail", "mend"]), OWNERS, WHICH),
        st.tuples(st.sampled_from(["give up", "resolve", "advance", "trim"]), OWNERS, WHICH),
    ),
    min_size=10,
    max_size=40,
)


class Play:
    """One case on a store that other cases may share: its names are its own."""

    def __init__(self, runtime: Runtime, clock: FakeClock) -> None:
        self.run = runtime.service(Store).run
        self.log, self.clock = runtime.event_log, clock
        self.name = uuid.uuid4().hex
        self.count = 0

    async def step(self, does: str, owner: str, which: int) -> None:
        owner = f"{self.name}-{owner}"
        if does in ("take in", "instant"):
            await self.run(partial(take_in, self.event(does, owner, which)))
        elif does in ("succeed", "retry", "die"):
            await self.end(does, which)
        elif does in ("alive", "leave"):
            await self.run(partial(keep_alive if does == "alive" else leave, owner))
        elif does == "take over":
            await self.run(partial(take_over, owner, frozenset({"a", "b"})))
        elif does in ("enter", "go out"):
            decide = enter if does == "enter" else partial(go_out, which)
            await self.run(lambda: at_gate(f"{self.name}-{which % 3}", owner, which, decide))
        elif does in ("fail", "mend"):
            await self.run(
                lambda: at_circuit(f"{self.name}-{which % 3}", fail if does == "fail" else mend)
            )
        elif does == "give up":
            await self.run(partial(give_up, f"{self.name}-{which % 2}", which))
        elif does == "resolve":
            await self.resolve(which)
        elif does == "advance":
            await self.clock.advance(f"{which * which * 30}s")
        else:
            topic = (
                topics.TRIGGER_ENVELOPES,
                topics.TRIGGER_FLOW,
                topics.CRON_STATE,
                topics.TRIGGER_OWNERS,
            )[which % 4]
            await self.log.trim(topic, keep=which)

    def event(self, does: str, owner: str, which: int) -> NewEvent:
        self.count += 1
        id = f"{self.name}-{self.count}"
        claim = DedupeClaim(self.name, f"key {which % 4}", "d", 60_000 * (1 + which))
        instant = (f"{self.name}-{which % 2}", self.count + which)
        deliveries = (Delivery("a", 1), Delivery("b", 1, claim))[: 1 + which % 2]
        if does == "instant":
            return NewEvent(id, {"id": id}, owner, deliveries, instant=instant)
        return NewEvent(id, {"id": id}, owner, deliveries, claim if which % 3 else None)

    async def end(self, does: str, which: int) -> None:
        _, waiting = await self.run(pending)
        if not waiting:
            return
        found = waiting[which % len(waiting)]
        if does == "retry":
            await self.run(partial(note_retry, found.envelope, found.owner, which, 500, "boom"))
            return
        ends = [draft(topics.TRIGGER_OUTBOX, "dispatch_ended", {"envelope": found.envelope})]
        if does == "die":
            ends.append(letter(f"dlq-{uuid.uuid4().hex}", found.event_id, "pending"))
        await self.run(partial(settle_envelope, found.envelope, found.owner, ends))

    async def resolve(self, which: int) -> None:
        _, waiting = await self.run(dead_letters)
        if waiting:
            found = waiting[which % len(waiting)]
            entry = letter(found.id, found.event_id, "resolved")
            await self.run(partial(change_letter, found.id, "pending", entry))


def enter(marks: list[Mark], now: int) -> Sequence[GateChange]:
    room = sum(mark.held for mark in marks) < 2
    return [GateChange("acquired", "add", held=room, rank=len(marks), prune_ms=90_000)]


def go_out(which: int, marks: list[Mark], now: int) -> Sequence[GateChange]:
    if not marks:
        return []
    return [GateChange("released", "drop", (marks[which % len(marks)].ticket,))]


def fail(row: CircuitRow, now: int) -> tuple[None, CircuitRow]:
    return None, CircuitRow(row.failures + 1, now + 1000)


def mend(row: CircuitRow, now: int) -> tuple[None, CircuitRow]:
    return None, CircuitRow()


def letter(id: str, event_id: str, state: str) -> Any:
    payload = {"id": id, "event_id": event_id, "binding_id": "a", "state": state}
    return draft(topics.TRIGGER_DLQ, "dlq_entry", payload)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_a_rebuilt_index_is_the_index(storage_url: str, steps: list[Any]) -> None:
    clock = FakeClock()
    async with Runtime(storage=storage_url, clock=clock) as runtime:
        play = Play(runtime, clock)
        for step in steps:
            await clock.advance("1ms")
            await play.step(*step)

        assert await runtime.service(Store).run(compare) == []
