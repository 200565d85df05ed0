"""A request to cancel a running call of a shared pool outlives the process that runs the call."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import harn
from harn import Pool, Runtime
from harn.pools import leaked_slots
from harn.pools.shared_pool_slots import SharedPoolSlots
from harn.storage import Store
from harn.storage.log import compare
from harn.storage.queue.shared_pools import (
    JobDraft,
    PoolClaim,
    PoolDone,
    PoolSettings,
    PoolSubmit,
    PoolWork,
    Settlement,
    Totals,
    open_pool,
    work_on_pool,
)
from tests.pools.shared_processes import Process, gates, ran, until


@harn.durable(name="tests:shared_stubborn", rerun=True)
async def stubborn(name: str) -> str:
    """Run until the gate opens, whatever cancels it."""
    ran.append(f"{name} begins")
    while not gates[name].is_set():
        try:
            await gates[name].wait()
        except asyncio.CancelledError:
            ran.append(f"{name} is cancelled")
    return name


@pytest.fixture(autouse=True)
async def gate(processes: list[Process]) -> Any:
    """Open the gate at the end, before the runtimes wait for what runs in them."""
    gates["a"] = asyncio.Event()
    yield
    gates["a"].set()


def slots_of(pool: Pool) -> SharedPoolSlots:
    slots = pool._slots
    assert isinstance(slots, SharedPoolSlots)
    return slots


async def settled(process: Process, pool: Pool) -> None:
    """The log folds to the index, and no slot is leaked."""
    await until(lambda: pool.size() == 0)
    store = process.runtime.service(Store)
    assert await process.inside(lambda: store.run(compare)) == []
    assert await process.inside(lambda: leaked_slots(process.runtime)) == []


@pytest.mark.parametrize("asked_by", ["its own process", "another process"])
async def test_a_call_that_was_cancelled_does_not_run_again_after_its_process_died(
    processes: list[Process], asked_by: str
) -> None:
    first, second = processes
    ours = await first.open()
    theirs = await second.open(run_here=False)
    task = await (ours if asked_by == "its own process" else theirs).submit(stubborn, "a")
    await until(lambda: ran == ["a begins"] and task.status == "running")

    assert task.cancel()
    await until(lambda: "a is cancelled" in ran)
    await until(lambda: slots_of(theirs).mirror.asked != set())  # the store has the request
    slots_of(ours).is_claiming = False
    await first.expire(second)

    await until(lambda: theirs.snapshot(False).cancelled == 1)
    assert ran.count("a begins") == 1
    gates["a"].set()
    await settled(second, theirs)


@harn.durable(name="tests:shared_gentle", rerun=True)
async def gentle(name: str) -> str:
    ran.append(f"{name} begins")
    await gates[name].wait()
    return name


async def test_a_call_that_was_cancelled_is_not_queued_again_by_a_close(
    processes: list[Process],
) -> None:
    first, second = processes
    ours, theirs = await first.open(), await second.open(run_here=False)
    task = await theirs.submit(gentle, "a")
    await until(lambda: ran == ["a begins"] and task.status == "running")
    follower = slots_of(ours).follower
    assert follower is not None
    await follower.stop()  # so that it does not read the request before it closes

    assert task.cancel()
    await until(lambda: slots_of(theirs).mirror.asked != set())
    await ours.close(cancel=True)

    assert (await task.wait()).status == "cancelled"
    await settled(second, theirs)


async def test_a_request_that_is_read_before_the_answer_to_the_claim_is_kept(
    processes: list[Process],
) -> None:
    first, _ = processes
    pool = await first.open()
    slots = slots_of(pool)
    slots.is_claiming = False
    task = await pool.submit(gentle, "a")

    slots.cancels.asked(task._extras.ticket)
    slots.is_claiming = True
    slots.start_more()

    assert (await task.wait()).status == "cancelled"
    assert ran == []
    await settled(first, pool)


async def test_the_slot_of_a_call_that_is_not_queued_again_goes_to_the_next(
    lasting_url: str,
) -> None:
    settings = PoolSettings("org", "acme", "gpu", "oldest", 1, {}, {}, {})
    record = b'{"priority":"normal","max_attempts":0,"trigger_id":"lease","function":"f"}'
    job = JobDraft(record, b'{"queue":"pool"}', 1, None, None, "lease", None, 0, function="f")
    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await store.run(partial(open_pool, "pool", settings))

        async def work(**asked: Any) -> PoolDone:
            ids = runtime.ids.uuid7s
            claim = PoolClaim("lease", "lease", frozenset("f"), frozenset(), 0, ids)
            wanted = PoolWork(lambda *_: "admit", claim=claim, **asked)
            done = await store.run(partial(work_on_pool, "pool", wanted, runtime.ids.new))
            assert done is not None
            return done

        [first] = (await work(submits=[PoolSubmit((job, job))])).claimed
        assert (await work(cancels=[first.id])).cancelled == ["asked"]

        done = await work(ends=[Settlement("release", first.id, first.claim_id, "lease")])

        assert [claimed.id for claimed in done.claimed] == [first.id + 1]
        assert done.totals == Totals(queued=0, running=1, blocked=0)
