"""Pools: run *n* closures with ten at once; queue *n* behind one that does not end."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from time import sleep

from _tell import began, main, rss, tell

CAP = 10


async def noop():
    pass


async def a_millisecond():
    await asyncio.sleep(0.001)


async def workers(closure, n):
    queue = deque([closure] * n)

    async def worker():
        while queue:
            await queue.popleft()()

    await asyncio.gather(*(worker() for _ in range(CAP)))


async def semaphore_and_group(closure, n):
    semaphore = asyncio.Semaphore(CAP)

    async def one():
        async with semaphore:
            await closure()

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(one())


async def harn(closure, n):
    from harn import Runtime, pool_create, pool_wait

    async with Runtime():
        pool = await pool_create(max_concurrent=CAP)
        began()
        tasks = [await pool.submit(closure) for _ in range(n)]
        await pool_wait(tasks)


async def anyio(closure, n):
    from anyio import CapacityLimiter, create_task_group

    limiter = CapacityLimiter(CAP)

    async def one():
        async with limiter:
            await closure()

    began()
    async with create_task_group() as group:
        for _ in range(n):
            group.start_soon(one)


async def aiometer(closure, n):
    from aiometer import run_all

    began()
    await run_all([closure] * n, max_at_once=CAP)


async def aiojobs(closure, n):
    from aiojobs import Scheduler

    scheduler = Scheduler(limit=CAP, pending_limit=0)
    began()
    jobs = [await scheduler.spawn(closure()) for _ in range(n)]
    for job in jobs:
        await job.wait()
    await scheduler.close()


def threads(closure, n):
    with ThreadPoolExecutor(CAP) as pool:
        began()
        for future in [pool.submit(closure) for _ in range(n)]:
            future.result()


# -- bytes of one that waits -----------------------------------------------------------------------

KEYS = 100_000


async def queued_bare(n):
    """A deque for each key, and a ring of those that are not empty."""
    names = [f"key-{number}" for number in range(KEYS)]
    before = rss()
    ring = {}
    for number in range(n):
        ring.setdefault(names[number % KEYS], deque()).append(partial(noop))
    tell((rss() - before) / n)


async def queued_harn(n):
    from harn import Runtime, pool_create

    names = [f"key-{number}" for number in range(KEYS)]
    async with Runtime():
        pool = await pool_create(max_concurrent=1, queue="fair_round_robin")
        await pool.submit(asyncio.Event().wait)
        before = rss()
        tasks = [await pool.submit(noop, key=names[number % KEYS]) for number in range(n)]
        tell((rss() - before) / len(tasks))


async def queued_group(n):
    semaphore = asyncio.Semaphore(1)
    await semaphore.acquire()

    async def one():
        async with semaphore:
            pass

    before = rss()
    tasks = [asyncio.create_task(one()) for _ in range(n)]
    await asyncio.sleep(0)
    tell((rss() - before) / len(tasks))


async def queued_anyio(n):
    from anyio import CapacityLimiter, create_task_group

    limiter = CapacityLimiter(1)
    await limiter.acquire_on_behalf_of("somebody")

    async def one():
        async with limiter:
            pass

    before = rss()
    async with create_task_group() as group:
        for _ in range(n):
            group.start_soon(one)
        await asyncio.sleep(0)
        tell((rss() - before) / n)


async def queued_aiojobs(n):
    from aiojobs import Scheduler

    scheduler = Scheduler(limit=1, pending_limit=0)
    await scheduler.spawn(asyncio.Event().wait())
    before = rss()
    jobs = [await scheduler.spawn(noop()) for _ in range(n)]
    tell((rss() - before) / len(jobs))


def queued_threads(n):
    pool = ThreadPoolExecutor(1)
    pool.submit(Event().wait)
    before = rss()
    futures = [pool.submit(int) for _ in range(n)]
    tell((rss() - before) / len(futures))


def both(do):
    async def with_noop(n):
        await do(noop, n)

    async def with_a_millisecond(n):
        await do(a_millisecond, n)

    return with_noop, with_a_millisecond


PLAYERS = {
    "worker loop": both(workers),
    "Semaphore in a TaskGroup": both(semaphore_and_group),
    "harn": both(harn),
    "anyio": both(anyio),
    "aiometer": both(aiometer),
    "aiojobs": both(aiojobs),
    "ThreadPoolExecutor": (partial(threads, int), partial(threads, partial(sleep, 0.001))),
}

main(
    {
        "no-op": {name: each[0] for name, each in PLAYERS.items()},
        "1 ms": {name: each[1] for name, each in PLAYERS.items()},
        "queued": {
            "worker loop": queued_bare,
            "Semaphore in a TaskGroup": queued_group,
            "harn": queued_harn,
            "anyio": queued_anyio,
            "aiojobs": queued_aiojobs,
            "ThreadPoolExecutor": queued_threads,
        },
    }
)
