"""The pool tasks that a piece of work causes are known, however they were submitted."""

from __future__ import annotations

import asyncio
from typing import Any

from harn import Runtime, from_thread, pool_create, spawn
from harn.pools import Pool, causing
from harn.testing import FakeClock


async def new_pool(**options: Any) -> Pool:
    return await pool_create(name="work", max_concurrent=4, **options)


async def test_submits_of_tasks_threads_and_pool_tasks_are_noted(runtime: Runtime) -> None:
    pool = await new_pool()
    done: list[str] = []

    async def deep() -> None:
        await pool.submit(lambda: done.append("deep"))

    async def child() -> None:
        pool.submit_nowait(lambda: done.append("task"))
        await pool.submit(deep)

    def on_thread() -> None:
        from_thread(pool.submit, lambda: done.append("thread"))

    with causing() as caused:
        handle = spawn(child)
        await asyncio.to_thread(on_thread)
        await handle
    await pool.submit(lambda: done.append("after the block"))
    work = await caused.wait(30)

    assert {"deep", "task", "thread"} <= set(done)
    assert (work.completed, work.is_well, str(work)) == (4, True, "4 pool tasks completed")


async def test_a_task_that_fails_is_told_with_its_error(runtime: Runtime) -> None:
    pool = await new_pool()

    with causing() as caused:
        await pool.submit(lambda: 1)
        task = await pool.submit(lambda: 1 / 0)
    work = await caused.wait(30)

    assert not work.is_well
    assert [each.id for each in work.failed] == [task.id]
    assert "ZeroDivisionError: division by zero" in str(work)
    assert work.as_dict() == {
        "completed": 1,
        "failed": 1,
        "unfinished": 0,
        "reason": str(work),
    }


async def test_a_task_that_does_not_end_in_time_is_unfinished_and_left_alone(
    runtime: Runtime, clock: FakeClock
) -> None:
    pool = await new_pool()
    gate = asyncio.Event()

    with causing() as caused:
        task = await pool.submit(gate.wait)
    waiting = asyncio.ensure_future(caused.wait(30))
    await clock.advance("31s")
    work = await waiting

    assert [each.id for each in work.unfinished] == [task.id]
    assert "had not ended in time" in str(work)
    gate.set()
    assert (await task.wait()).status == "completed"


async def test_a_task_that_a_full_pool_rejects_did_not_end_well(runtime: Runtime) -> None:
    pool = await pool_create(
        name="full", max_concurrent=1, backpressure={"kind": "ring_buffer", "capacity": 1}
    )
    gate = asyncio.Event()

    with causing() as caused:
        for _ in range(3):
            await pool.submit(gate.wait)
    gate.set()
    work = await caused.wait(30)

    assert [each.status for each in work.failed] == ["rejected"]


async def test_a_known_idempotency_key_notes_the_recorded_task(runtime: Runtime) -> None:
    pool = await new_pool()
    await (await pool.submit(lambda: 1, idempotency_key="k")).wait()

    with causing() as caused:
        await pool.submit(lambda: 1, idempotency_key="k")
    work = await caused.wait(30)

    assert work.completed == 1


async def test_completed_tasks_are_counted_and_forgotten(runtime: Runtime) -> None:
    pool = await new_pool()

    with causing() as caused:
        for _ in range(5000):
            await (await pool.submit(lambda: None)).wait()
    work = await caused.wait(30)

    assert work.completed == 5000
    assert len(caused._tasks) < 2000
