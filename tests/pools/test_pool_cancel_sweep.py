"""Cancel every public coroutine of a pool at every await point: nothing is lost, nothing leaks."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Pool, Runtime, backpressure_queue, durable, pool_create, pool_wait
from tests.sweep import Run, sweep


@durable(name="tests:sweep")
async def quick(n: int = 0) -> Any:
    await asyncio.sleep(0)
    return n


async def quiet(pool: Pool) -> None:
    """The counts add up, and the pool still works."""
    for _ in range(50):
        await asyncio.sleep(0)
        if not pool.size():
            break
    else:
        await asyncio.gather(*(task.wait() for task in pool._slots.pending()))
    seen = pool.snapshot()
    ended = seen.completed + seen.failed + seen.rejected + seen.cancelled
    assert seen.total == ended == len(seen.tasks)
    assert (seen.active, seen.queued, seen.blocked_submitters) == (0, 0, 0)
    assert await (await pool.submit(partial(quick, 7))) == 7


async def idle(pool: Pool) -> None:
    """Wait until the pool's workers have ended: a disk takes its time."""
    while pool._slots.workers:
        await asyncio.wait([worker.aio for worker in pool._slots.workers])
        await asyncio.sleep(0)


async def to_the_end(work: Any) -> None:
    """Await *work* whatever cancels us, then let the cancel out."""
    waiting, cancel = asyncio.ensure_future(work), None
    while not waiting.done():
        try:
            await asyncio.wait((waiting,))
        except asyncio.CancelledError as error:
            cancel = error
    if cancel is not None:
        raise cancel


async def test_submit_wait_and_pool_wait(runtime: Runtime) -> None:
    pool = await pool_create(max_concurrent=1)

    async def case() -> None:
        tasks = [await pool.submit(quick) for _ in range(3)]
        await tasks[0].wait()
        await tasks[1]
        await pool_wait(tasks)

    assert await sweep(case, lambda run: quiet(pool), leftovers=40) > 4


async def test_B2_a_parked_submit(runtime: Runtime) -> None:
    pool = await pool_create(max_concurrent=1, backpressure=backpressure_queue(1))

    async def case() -> None:
        submits = []
        for _ in range(4):
            submits.append(await pool.submit(quick))
        await pool_wait(submits)

    assert await sweep(case, lambda run: quiet(pool), leftovers=40) > 4


async def test_two_parked_submitters_and_a_cancel_of_the_first(runtime: Runtime) -> None:
    pool = await pool_create(max_concurrent=1, backpressure=backpressure_queue(1))

    async def case() -> None:
        await pool.submit(quick)
        await pool.submit(quick)
        other = asyncio.ensure_future(pool.submit(partial(quick, 2)))
        try:
            await pool.submit(partial(quick, 1))
        finally:
            task = await asyncio.shield(other)
            await asyncio.shield(asyncio.ensure_future(task.wait()))

    await sweep(case, lambda run: quiet(pool), leftovers=60, may_finish=True)


async def test_B2_a_parked_submit_many(runtime: Runtime) -> None:
    pool = await pool_create(max_concurrent=1, backpressure=backpressure_queue(2))

    async def case() -> None:
        first = await pool.submit_many([quick, quick])
        await pool_wait([*first, *await pool.submit_many([quick, quick, quick])])

    assert await sweep(case, lambda run: quiet(pool), leftovers=60) > 4


async def test_close_and_pool_create(runtime: Runtime) -> None:
    async def case() -> None:
        pool = await pool_create(name="swept", max_concurrent=1)
        try:
            await pool.submit(quick)
            await pool.submit(quick)
            await pool.close()
        finally:
            await asyncio.shield(asyncio.ensure_future(pool.close(cancel=True)))

    async def gone(run: Run) -> None:
        for _ in range(60):
            await asyncio.sleep(0)
        assert harn.pool_get("swept") is None

    assert await sweep(case, gone, leftovers=60) > 2


@pytest.mark.parametrize("durable_call", [True, False])
async def test_a_pipeline_submit(tmp_path: Path, durable_call: bool) -> None:
    async with harn.Runtime(state_dir=tmp_path, storage="memory://"):
        pool = await pool_create(name="jobs", scope="pipeline", pipeline_id="p", max_concurrent=1)
        fn = partial(quick, 1) if durable_call else partial(asyncio.sleep, 0)

        async def case() -> None:
            try:
                task = await pool.submit(fn)
                await task.wait()
                await pool_wait(await pool.submit_many([fn, fn]))
            finally:
                await to_the_end(idle(pool))

        async def check(run: Run) -> None:
            while pool.size():
                await asyncio.gather(*(task.wait() for task in pool._slots.pending()))
            await quiet(pool)

        assert await sweep(case, check) > 3
        total = pool.snapshot().total
        await pool.close()
        pool = await pool_create(name="jobs", scope="pipeline", pipeline_id="p")
        assert pool.snapshot().total == total


async def test_opening_a_pipeline_pool(tmp_path: Path) -> None:
    async def closed() -> None:
        while (pool := harn.pool_get("jobs")) is not None:
            await pool.close()

    async def case() -> None:
        try:
            pool = await pool_create(name="jobs", scope="pipeline", pipeline_id="p")
            await pool.close()
        finally:
            await to_the_end(closed())

    async def check(run: Run) -> None:
        pool = await pool_create(name="jobs", scope="pipeline", pipeline_id="p")
        await pool.close()

    async with harn.Runtime(state_dir=tmp_path, storage="memory://"):
        assert await sweep(case, check) > 2
