"""Cancel, and stop, every public coroutine of a shared pool at every await point: nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Pool, Runtime, backpressure_queue, pool_create, pool_wait, spawn
from harn.cli import invoke
from harn.pools import leaked_slots
from harn.pools.shared_pool_slots import SharedPoolSlots
from harn.storage import Store
from harn.storage.log import compare
from tests.pools.shared_processes import Process
from tests.sweep import Run, stop_at, sweep

Case = Callable[[Pool], Coroutine[Any, Any, Any]]
keys = itertools.count()
OPTIONS: dict[str, Any] = {"queue": "fifo", "backpressure": backpressure_queue(1)}


@harn.durable(name="tests:shared_sweep")
async def quick(n: int = 0) -> int:
    await asyncio.sleep(0)
    return n


@harn.durable(name="tests:shared_sweep_endless", rerun=True)
async def endless() -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def processes(tmp_path: Path) -> AsyncIterator[list[Process]]:
    url = f"sqlite:///{tmp_path}/state/events.sqlite"
    async with Runtime(storage=url) as first, Runtime(storage=url) as second:
        yield [Process(first), Process(second)]


def slots_of(pool: Pool) -> SharedPoolSlots:
    slots = pool._slots
    assert isinstance(slots, SharedPoolSlots)
    return slots


def is_at_rest(pool: Pool) -> bool:
    """Tell whether nothing is on its way, waits or runs, as far as the process of *pool* knows."""
    slots = slots_of(pool)
    on_their_way = slots.unplaced or slots.sending or slots.unwanted or slots.own
    batcher = slots.work._batcher
    is_idle = batcher.is_idle and not batcher.waiting and slots.recovery._sending is None
    seen = pool.snapshot(False)
    waits = seen.active + seen.queued + seen.blocked_submitters + len(slots.self_waits.waits)
    return is_idle and not (on_their_way or waits or slots.here or slots.workers or reads())


def reads() -> list[asyncio.Task[Any]]:
    """Return the reads that nothing waits for; an end that the store refuses begins one."""
    names = {task: getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    return [task for task, name in names.items() if name == "Follower._until_done"]


async def rest(pools: list[Pool]) -> None:
    """Cancel what a run has left, and wait until every process knows that it has ended."""
    async with asyncio.timeout(30):
        while not all(map(is_at_rest, pools)):
            for task in slots_of(pools[0]).pending():
                task.cancel()
            await asyncio.sleep(0.002)


async def to_the_end(work: Awaitable[Any]) -> None:
    """Await *work* whatever cancels us, then let the cancel out."""
    waiting, cancel = asyncio.ensure_future(work), None
    while not waiting.done():
        try:
            await asyncio.wait((waiting,))
        except asyncio.CancelledError as error:
            cancel = error
    waiting.result()
    if cancel is not None:
        raise cancel


async def submitted(pool: Pool) -> None:
    tasks = [await pool.submit(quick, 1), await pool.submit(lambda: 2)]
    await tasks[0].wait()
    assert await tasks[1] == 2
    await pool_wait(tasks)


async def blocked(pool: Pool) -> None:
    tasks = [await pool.submit(quick, n) for n in range(4)]
    assert [await task for task in tasks] == [0, 1, 2, 3]


async def blocked_together(pool: Pool) -> None:
    first = await pool.submit_many([quick, lambda: 1])
    await pool_wait([*first, *await pool.submit_many([quick, lambda: 1])])


async def with_a_key(pool: Pool) -> None:
    key = f"key {next(keys)}"
    tasks = [await pool.submit(quick, 1, idempotency_key=key) for _ in range(2)]
    assert tasks[0] is tasks[1]
    assert await tasks[0] == 1


async def cancelled(pool: Pool) -> None:
    running, queued = await pool.submit(endless), await pool.submit(endless)
    queued.cancel()
    await queued.wait()
    running.cancel()
    await running.wait()


CASES: list[Case] = [submitted, blocked, blocked_together, with_a_key, cancelled]


async def both(processes: list[Process], run_here: bool) -> list[Pool]:
    return [
        await processes[0].open(run_here=run_here, **OPTIONS),
        await processes[1].open(**OPTIONS),
    ]


async def nothing_leaked(process: Process) -> None:
    assert await leaked_slots(process.runtime) == []
    assert await process.runtime.service(Store).run(compare) == []


@pytest.mark.parametrize("run_here", [True, False])
@pytest.mark.parametrize("case", CASES)
async def test_a_cancel_at_every_await_point_leaves_nothing_behind(
    processes: list[Process], case: Case, run_here: bool
) -> None:
    first, _ = processes
    pools = await both(processes, run_here)

    async def run() -> None:
        try:
            await case(pools[0])
        finally:
            await to_the_end(rest(pools))

    async def check(run: Run) -> None:
        assert await leaked_slots(first.runtime) == []

    assert await first.inside(lambda: sweep(run, check, leftovers=40)) > 4
    await first.inside(lambda: nothing_leaked(first))
    verify = ["log", "verify", "--storage", first.runtime.storage_url]
    assert await asyncio.to_thread(invoke, verify) == 0


@pytest.mark.parametrize("case", CASES)
async def test_a_stop_at_every_await_point_leaves_nothing_behind(
    processes: list[Process], case: Case
) -> None:
    first, _ = processes
    pools = await both(processes, run_here=True)

    async def stopped(k: int, race: bool) -> bool:
        requested: list[int] = []
        handle = spawn(partial(stop_at, case(pools[0]), k, race, requested))
        async with asyncio.timeout(30):
            await handle._join()
        outcome = handle._outcome()
        if isinstance(outcome, harn.Err) and handle.status != "cancelled":
            raise outcome.error
        await rest(pools)
        return bool(requested)

    async def every(race: bool) -> int:
        k = 1
        while await stopped(k, race):
            k += 1
            assert k < 200
        return k

    for race in (False, True):
        assert await first.inside(partial(every, race)) > 2
    await first.inside(lambda: nothing_leaked(first))


@pytest.mark.parametrize("cancel", [True, False])
async def test_opening_and_closing(processes: list[Process], cancel: bool) -> None:
    first, second = processes
    theirs = await second.open(**OPTIONS)
    settings = {"name": "gpu", "scope": "tenant", "scope_id": "acme", **OPTIONS}

    async def closed() -> None:
        while (pool := harn.pool_get("gpu")) is not None:
            await pool.close(cancel=True)
        await rest([theirs])

    async def case() -> None:
        try:
            pool = await pool_create(**settings)
            await pool.submit(quick)
            await pool.submit(lambda: 1)
            await pool.close(cancel=cancel)
        finally:
            await to_the_end(closed())

    assert await first.inside(lambda: sweep(case, leftovers=60)) > 4
    await first.inside(lambda: nothing_leaked(first))
