"""Pools under random programs, against a model: P1 to P7, B1 to B6, I1 to I3."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harn import (
    PoolBusy,
    PoolFull,
    PoolTask,
    Runtime,
    backpressure_queue,
    fail_fast,
    fair_round_robin,
    pool_create,
    ring_buffer,
)
from harn.testing import FakeClock
from tests.pools.pool_items import Item, Model

POLICIES = {
    "unbounded": None,
    "block": backpressure_queue(2),
    "drop_oldest": backpressure_queue(2, "drop_oldest"),
    "drop_newest": backpressure_queue(2, "drop_newest"),
    "fail": backpressure_queue(2, "fail_submitter"),
    "fail_fast": fail_fast(),
    "ring": ring_buffer(2),
}


class Gate(asyncio.Event):
    """Where a task waits; *fails* says how it ends."""

    fails = False


class PoolMachine(RuleBasedStateMachine):
    """Submits, ends and cancels; after every step the pool must agree with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.tasks: list[tuple[PoolTask, Item]] = []  # every accepted submit
        self.gates: dict[int, Gate] = {}
        self.running: list[Item] = []
        self.statuses: dict[int, str] = {}
        self.parked: list[tuple[asyncio.Future[PoolTask], Item]] = []
        self.keys: dict[str, int] = {}
        self.most = 0
        self.number = 0

    def teardown(self) -> None:
        self.do(self.close())
        self.runner.close()

    def do(self, work: Any) -> Any:
        async def steps() -> Any:
            result = await work
            for _ in range(12):
                await asyncio.sleep(0)
            return result

        return self.runner.run(steps())

    @initialize(
        queue=st.sampled_from(["fifo", "lifo", "priority", "fair_round_robin"]),
        policy=st.sampled_from(sorted(POLICIES)),
        slots=st.integers(1, 3),
    )
    def open(self, queue: Any, policy: Any, slots: int) -> None:
        async def begin() -> Any:
            self.runtime = Runtime(clock=FakeClock(), seed=0)
            await self.runtime.__aenter__()
            strategy = fair_round_robin() if queue == "fair_round_robin" else queue
            return await pool_create(
                max_concurrent=slots, queue=strategy, backpressure=POLICIES[policy]
            )

        self.policy, self.slots, self.model = policy, slots, Model(queue)
        self.depth = 10**9 if policy == "unbounded" else 0 if policy == "fail_fast" else 2
        self.pool = self.do(begin())

    async def close(self) -> None:
        if hasattr(self, "runtime"):
            for future, _ in self.parked:
                future.cancel()
            await self.runtime.aclose()

    async def closure(self, number: int) -> Any:
        gate = self.gates[number] = Gate()
        self.most = max(self.most, len(self.gates))
        try:
            await gate.wait()
        finally:
            del self.gates[number]
        if gate.fails:
            raise ValueError(number)
        return number

    async def submit(self, item: Any, key: str, idempotency_key: Any) -> Any:
        return await self.pool.submit(
            functools.partial(self.closure, item.seq),
            priority=item.priority,
            key=key,
            idempotency_key=idempotency_key,
        )

    def enter(self, item: Item) -> None:
        if len(self.running) < self.slots:
            self.running.append(item)
            self.statuses[item.seq] = "running"
        else:
            self.model.push(item)
            self.statuses[item.seq] = "queued"

    def passed_on(self) -> None:
        """A slot or a place came free: the model moves up."""
        while len(self.running) < self.slots and (following := self.model.pop()) is not None:
            self.running.append(following)
            self.statuses[following.seq] = "running"
        while self.parked and len(self.model.items) < self.depth:
            future, item = self.parked.pop(0)
            assert future.done(), "the first in line was not let in"
            self.tasks.append((future.result(), item))
            self.enter(item)

    @rule(
        priority=st.integers(0, 2),
        key=st.sampled_from([None, "a", "b"]),
        idempotency_key=st.sampled_from([None, None, "x", "y"]),
    )
    def submits(self, priority: Any, key: str, idempotency_key: Any) -> None:
        self.number += 1
        item = Item(self.number, priority, key)
        if idempotency_key in self.keys:
            before = self.pool.snapshot(tasks=False)
            task = self.do(self.submit(item, key, idempotency_key))
            assert [i.seq for t, i in self.tasks if t is task] == [self.keys[idempotency_key]]
            assert self.pool.snapshot(tasks=False) == before
            return
        free = len(self.running) < self.slots
        full = not free and len(self.model.items) >= self.depth
        if self.policy == "block" and (full or self.parked):
            idempotency_key = None
            future = asyncio.ensure_future

            async def park() -> Any:
                return future(self.submit(item, key, None))

            self.parked.append((self.do(park()), item))
            return
        if full and self.policy in ("fail", "fail_fast"):
            try:
                self.do(self.submit(item, key, idempotency_key))
            except (PoolFull, PoolBusy):
                return
            raise AssertionError("a full pool took a task")
        if full and self.policy in ("drop_oldest", "ring"):
            oldest = min(self.model.items, key=lambda each: each.seq)
            self.model.remove(oldest)
            self.statuses[oldest.seq] = "rejected"
            self.keys = {k: n for k, n in self.keys.items() if n != oldest.seq}
        task = self.do(self.submit(item, key, idempotency_key))
        self.tasks.append((task, item))
        if full and self.policy == "drop_newest":
            self.statuses[item.seq] = "rejected"
            return
        if idempotency_key is not None:
            self.keys[idempotency_key] = item.seq
        self.enter(item)

    @rule(which=st.integers(0, 10), fails=st.booleans())
    def a_running_task_ends(self, which: int, fails: bool) -> None:
        if not self.running:
            return
        item = self.running.pop(which % len(self.running))

        async def let_go() -> None:
            gate = self.gates[item.seq]
            gate.fails = fails
            gate.set()

        self.do(let_go())
        self.statuses[item.seq] = "failed" if fails else "completed"
        self.passed_on()

    @rule(which=st.integers(0, 50))
    def a_task_is_cancelled(self, which: int) -> None:
        if not self.tasks:
            return
        task, item = self.tasks[which % len(self.tasks)]
        live = self.statuses[item.seq] in ("queued", "running")

        async def cancel() -> Any:
            return task.cancel()

        assert self.do(cancel()) == live
        if not live:
            return
        if item in self.running:
            self.running.remove(item)
        else:
            self.model.remove(item)
        self.statuses[item.seq] = "cancelled"
        self.passed_on()

    @rule(which=st.integers(0, 10))
    def a_parked_submitter_is_cancelled(self, which: int) -> None:
        if self.parked:
            future, _ = self.parked.pop(which % len(self.parked))

            async def cancel() -> None:
                future.cancel()

            self.do(cancel())

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        seen = self.pool.snapshot()
        assert {i.seq: t.status for t, i in self.tasks} == self.statuses
        assert self.most <= self.slots
        assert seen.active == len(self.running) == len(self.gates)
        assert seen.queued == len(self.model.items) <= max(self.depth, 0)
        assert seen.blocked_submitters == len(self.parked)
        ended = seen.completed + seen.failed + seen.rejected + seen.cancelled
        assert seen.total == seen.active + seen.queued + ended == len(self.tasks)
        assert self.pool.size() == seen.active + seen.queued
        for task, _ in self.tasks:
            if task.done():
                assert self.do(task.wait()) == task.snapshot()


PoolMachine.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestPool = PoolMachine.TestCase
