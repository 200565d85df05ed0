"""A process of a shared pool that has lost its lease, or the answer to an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import harn
from harn import Pool, StorageBusy, backpressure_queue, pool_wait
from harn.pools import leaked_slots
from harn.pools.shared_ends import Ending, TaskClaim
from harn.pools.shared_follow import Follower
from harn.pools.shared_pool_slots import SharedPoolSlots
from harn.pools.shared_process import PoolProcess
from harn.storage.queue import Settlement, SettlementResult
from tests.pools.shared_processes import Process, gates, held, open_held, ran, until


@harn.durable(name="tests:shared_noted")
async def noted(name: str) -> str:
    ran.append(name)
    return name


def slots_of(pool: Pool) -> SharedPoolSlots:
    slots = pool._slots
    assert isinstance(slots, SharedPoolSlots)
    return slots


def follower_of(pool: Pool) -> Follower:
    follower = slots_of(pool).follower
    assert follower is not None
    return follower


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_submit_that_waits_for_a_place_survives_its_lease(
    processes: list[Process], calls: int
) -> None:
    paused, other = processes
    options: dict[str, Any] = {"queue": "fifo", "backpressure": backpressure_queue(2)}
    pools = [await each.open(**options) for each in processes]
    full = [await pools[1].submit(held(name)) for name in ("a", "b", "c")]
    wanted = [open_held(f"late {n}") for n in range(calls)]
    blocked = asyncio.ensure_future(pools[0].submit_many(wanted))
    await until(lambda: pools[1].snapshot(False).blocked_submitters == calls)

    lease = paused.lease
    await paused.expire(other)
    await until(lambda: paused.lease != lease)
    await until(lambda: pools[1].snapshot(False).blocked_submitters == calls)
    for gate in gates.values():
        gate.set()

    tasks = await blocked
    assert [await task for task in tasks] == [f"late {n}" for n in range(calls)]
    await pool_wait(full)
    assert ran == ["a", "b", "c", *(f"late {n}" for n in range(calls))]
    assert await other.inside(lambda: leaked_slots(other.runtime)) == []


async def test_a_process_whose_lease_has_ended_claims_nothing_under_it(
    processes: list[Process],
) -> None:
    paused, other = processes
    pools = [await each.open(max_concurrent=2) for each in processes]
    closure = await pools[0].submit(held("before"))
    await until(lambda: ran == ["before"])
    lease = paused.lease
    await paused.expire(other)
    await until(lambda: pools[1].snapshot(False).failed == 1)  # the other one has ended the lease

    task = await pools[0].submit(noted, "after")

    assert await task == "after"
    assert paused.lease != lease
    assert (await closure.wait()).stale_reason == "interrupted"
    await until(lambda: all(pool.size() == 0 for pool in pools))
    assert await other.inside(lambda: leaked_slots(other.runtime)) == []


class LosesAnswers:
    """A store that carries operations out and loses the answers of some."""

    def __init__(self, pool: Pool) -> None:
        self._work = slots_of(pool).work
        self._store = self._work._store
        self.left = 0
        self.may_tell = asyncio.Event()
        """Set unless the loss is to be noticed later."""
        self.may_tell.set()
        self._work._store = self  # type: ignore[assignment]

    def submit(self, recipe: Callable[[], Any], *, into: asyncio.Future[Any]) -> None:
        if not self.left:
            self._store.submit(recipe, into=into)
            return
        self.left -= 1
        self._losing = asyncio.ensure_future(self._lose(self._store.submit(recipe), into))

    async def _lose(self, answer: asyncio.Future[Any], into: asyncio.Future[Any]) -> None:
        await answer
        await self.may_tell.wait()
        into.set_exception(StorageBusy("the answer was lost; it may have landed"))


async def test_a_claim_whose_answer_was_lost_is_found_and_run(processes: list[Process]) -> None:
    first, second = processes
    submitter = await second.open(run_here=False)
    pool = await first.open()
    answers = LosesAnswers(pool)

    answers.left = 1
    task = await submitter.submit(noted, "claimed")

    assert await task == "claimed"
    assert answers.left == 0
    assert ran == ["claimed"]
    await until(lambda: pool.size() == 0)


async def test_a_submit_whose_answer_was_lost_is_not_made_twice(processes: list[Process]) -> None:
    pool = await processes[0].open()
    answers = LosesAnswers(pool)

    answers.left = 1
    tasks = [pool.submit_nowait(noted, "call"), pool.submit_nowait(open_held("closure"))]

    assert [await task for task in tasks] == ["call", "closure"]
    assert sorted(ran) == ["call", "closure"]
    assert pool.snapshot().total == 2


async def test_a_closure_whose_submit_raised_does_not_run(processes: list[Process]) -> None:
    pool = await processes[0].open()
    await follower_of(pool).stop()  # else it may find the task before the loss is noticed
    answers = LosesAnswers(pool)

    answers.left = 1
    with pytest.raises(StorageBusy):
        await pool.submit(open_held("closure"))

    await until(lambda: pool.snapshot(False).cancelled == 1)
    assert ran == []
    assert await (await pool.submit(noted, "next")) == "next"


async def test_a_submit_that_is_read_before_its_answer_is_lost_succeeds(
    processes: list[Process],
) -> None:
    pool = await processes[0].open()
    answers = LosesAnswers(pool)

    answers.left = 1
    answers.may_tell.clear()
    submitting = asyncio.ensure_future(pool.submit(open_held("closure")))
    await until(lambda: not slots_of(pool).unplaced and bool(slots_of(pool).own))
    answers.may_tell.set()

    assert await (await submitting) == "closure"


async def test_a_cancel_whose_answer_was_lost_is_asked_again(processes: list[Process]) -> None:
    pool = await processes[0].open(queue="fifo")
    await pool.submit(held("running"))
    queued = await pool.submit(held("queued"))
    answers = LosesAnswers(pool)

    answers.left = 1
    queued.cancel()

    assert (await queued.wait()).status == "cancelled"
    gates["running"].set()
    await until(lambda: pool.size() == 0)
    assert ran == ["running"]


async def test_a_submit_that_was_cancelled_before_its_answer_was_lost_is_undone(
    processes: list[Process],
) -> None:
    pool = await processes[0].open(queue="fifo")
    running = await pool.submit(held("running"))
    answers = LosesAnswers(pool)

    answers.left = 1
    answers.may_tell.clear()
    submitting = asyncio.ensure_future(pool.submit(noted, "unwanted"))
    await until(lambda: answers.left == 0)
    submitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert pool.size() == 2
    answers.may_tell.set()
    await until(lambda: pool.size() == 1 and not slots_of(pool).unwanted)
    gates["running"].set()

    await running
    await until(lambda: pool.size() == 0)
    assert ran == ["running"]


@harn.durable(name="tests:shared_slow_to_stop", rerun=True)
async def slow_to_stop(name: str) -> str:
    ran.append(f"{name} begins")
    try:
        await gates[name].wait()
    except asyncio.CancelledError:
        await gates["stopped"].wait()
        ran.append(f"{name} stopped")
        raise
    return name


async def test_a_call_begins_again_here_only_after_its_lost_run_has_ended(
    processes: list[Process],
) -> None:
    first, second = processes
    pool = await first.open()
    gates.update({name: asyncio.Event() for name in ("a", "stopped")})
    task = await pool.submit(slow_to_stop, "a")
    await until(lambda: ran == ["a begins"])

    lease = first.lease
    await first.expire(second)
    next = asyncio.ensure_future(pool.submit(noted, "b"))  # it finds that the lease has ended
    await until(lambda: first.lease != lease)
    await until(lambda: any(held.lease == first.lease for held in slots_of(pool).here.values()))
    assert ran == ["a begins"]
    gates["stopped"].set()
    await until(lambda: len(ran) == 3)
    gates["a"].set()

    assert await task == "a"
    assert await (await next) == "b"
    assert ran == ["a begins", "a stopped", "a begins", "b"]


async def test_an_end_whose_answer_was_lost_is_read_from_the_store(
    processes: list[Process],
) -> None:
    pool = await processes[0].open()
    task = await pool.submit(held("a"))
    await until(lambda: ran == ["a"])
    answers = LosesAnswers(pool)

    answers.left = 1
    gates["a"].set()

    assert await task == "a"
    assert pool.snapshot(False).completed == 1


async def test_a_late_answer_on_an_earlier_claim_leaves_the_new_one(
    processes: list[Process],
) -> None:
    pool = await processes[0].open()
    task = await pool.submit(held("a"))
    await until(lambda: ran == ["a"])
    slots = slots_of(pool)
    earlier = TaskClaim("an earlier claim", processes[0].lease)
    settlement = Settlement("ack", task._extras.ticket, earlier.claim_id, earlier.lease)

    answer = Ending(slots, task, earlier, settlement, "completed", None)
    answer.landed(SettlementResult("lost"))

    assert task in slots.here
    gates["a"].set()
    assert await task == "a"


async def test_a_claimed_closure_that_has_not_begun_does_not_begin_after_its_lease(
    processes: list[Process],
) -> None:
    process = processes[0]
    pool = await process.open(max_concurrent=8)

    async def loses_the_lease() -> None:
        ran.append("first")
        process.runtime.service(PoolProcess)._lose("a test")

    calls = [loses_the_lease, *(open_held(f"{n}") for n in range(4))]
    tasks = await pool.submit_many(calls)

    ended = await pool_wait(tasks)
    assert [task.status for task in ended] == ["failed"] * 5
    assert ran == ["first"]
