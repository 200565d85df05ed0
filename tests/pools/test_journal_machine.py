"""A journalled pool under random programs and restarts, against a model: P3, P4, I2, I4, J10."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from functools import partial
from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harn import Runtime, durable, pool_create, pool_simulate_restart
from harn.testing import FakeClock


class Gate(asyncio.Event):
    """Where a task waits; *fails* says how it ends."""

    fails = False


GATES: dict[int, Gate] = {}
"""The gate behind which the latest run of each number waits."""


async def closure(number: int) -> int:
    gate = GATES[number] = Gate()
    await gate.wait()
    if gate.fails:
        raise ValueError(number)
    return number


@durable(name="machine:once")
async def once(number: int) -> int:
    return await closure(number)


@durable(name="machine:rerun", rerun=True)
async def rerun(number: int) -> int:
    return await closure(number)


CALLS = {"once": once, "rerun": rerun}


class JournalMachine(RuleBasedStateMachine):
    """Submits, ends, cancels, restarts; after every step the pool must agree with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.place = tempfile.mkdtemp()
        self.ids: list[str] = []
        self.kinds: list[str] = []
        self.seen: list[tuple[str, object]] = []
        """What is expected of each: its status, and its result or stale reason."""
        self.keys: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "runtime"):
            self.do(self.runtime.aclose())
        self.runner.close()
        shutil.rmtree(self.place)

    def do(self, work: Any) -> Any:
        async def steps() -> Any:
            result = await work
            for _ in range(4):  # a start may follow a start: each waits for the disk
                await self.runtime.clock.activity.stored()
                for _ in range(12):
                    await asyncio.sleep(0)
            return result

        return self.runner.run(steps())

    async def opened(self) -> Any:
        return await pool_create(
            name="m", scope="pipeline", pipeline_id="p", queue="fifo", max_concurrent=self.slots
        )

    @initialize(slots=st.integers(1, 2))
    def open(self, slots: int) -> None:
        self.slots = slots
        self.runtime = Runtime(state_dir=self.place, storage="memory://", clock=FakeClock(), seed=0)

        async def begin() -> Any:
            await self.runtime.__aenter__()
            return await self.opened()

        self.pool = self.do(begin())

    def those(self, status: str) -> list[int]:
        return [number for number, (each, _) in enumerate(self.seen) if each == status]

    def move_up(self) -> None:
        for number in self.those("queued")[: self.slots - len(self.those("running"))]:
            self.seen[number] = ("running", None)

    @rule(kind=st.sampled_from(["once", "rerun", "closure"]), key=st.sampled_from([None, "x", "y"]))
    def submits(self, kind: str, key: str | None) -> None:
        number = len(self.ids)
        fn = partial(
            CALLS.get(kind, closure), number if key is None else self.keys.get(key, number)
        )
        task = self.do(self.pool.submit(fn, idempotency_key=key))
        if key in self.keys:
            assert task.id == self.ids[self.keys[key]]
            return
        if key is not None:
            self.keys[key] = number
        self.ids.append(task.id)
        self.kinds.append(kind)
        self.seen.append(("queued", None))
        self.move_up()

    @rule(which=st.integers(0, 10), fails=st.booleans())
    def a_running_task_ends(self, which: int, fails: bool) -> None:
        if not (running := self.those("running")):
            return
        number = running[which % len(running)]

        async def let_go() -> None:
            GATES[number].fails = fails
            GATES[number].set()

        self.do(let_go())
        self.seen[number] = ("failed", None) if fails else ("completed", number)
        self.move_up()

    @rule(which=st.integers(0, 20))
    def a_task_is_cancelled(self, which: int) -> None:
        if not (live := self.those("queued") + self.those("running")):
            return
        number = live[which % len(live)]

        async def cancel() -> Any:
            return self.pool._slots.find(self.ids[number]).cancel()

        assert self.do(cancel())
        self.seen[number] = ("cancelled", None)
        self.move_up()

    @rule()
    def the_process_restarts(self) -> None:
        async def restart() -> Any:
            pool_simulate_restart()
            return await self.opened()

        self.pool = self.do(restart())
        for number in self.those("running"):
            again = self.kinds[number] == "rerun"
            self.seen[number] = ("queued", None) if again else ("failed", "interrupted")
        for number in self.those("queued"):
            if self.kinds[number] == "closure":
                self.seen[number] = ("failed", "never_started")
        self.move_up()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "pool"):
            return
        seen = self.pool.snapshot()
        found = {task.id: task for task in seen.tasks}
        assert list(found) == self.ids
        for id, (status, more) in zip(self.ids, self.seen, strict=True):
            task = found[id]
            assert (task.status, task.result or task.stale_reason) == (status, more or None)
        assert seen.total == len(self.ids)
        assert seen.active == len(self.those("running")) <= self.slots


JournalMachine.TestCase.settings = settings(deadline=None, max_examples=40, stateful_step_count=20)
TestJournalledPool = JournalMachine.TestCase
