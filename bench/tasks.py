"""Tasks: what structure costs beside asyncio's own pieces.

`spawn` in a `scope` is compared with `TaskGroup.create_task`, which promises less (no first error
in time, no task tree, no cleanups) and is the nearest thing in the standard library; where the
difference goes is in docs/design/tasks.md.
`parallel_each` with a cap is compared with the usual gather-and-semaphore recipe, and with itself
at two sizes: the cost of an item must not grow with the number of items. All do nothing inside, so
only the overhead is seen; all run inside one runtime, on the same loop. *Stop* is what
it takes until 1,000 tasks that sleep are gone: asked by `cancel_graceful`, or ended with their
runtime, beside a plain cancel of asyncio's tasks. It is meant to take less than 100 ms.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterable

from bench.harness import Contest, Contestant, Goal, timed_async
from harn import (
    Runtime,
    cancel_graceful,
    deadline,
    parallel_each,
    parallel_each_stream,
    scope,
    sleep,
    spawn,
)

SUBJECT = "tasks: scopes, parallel forms, deadlines"
BATCH = 100


async def noop(_: object = None) -> None:
    pass


async def task_group(n: int) -> None:
    for _ in range(n // BATCH):
        async with asyncio.TaskGroup() as group:
            for _ in range(BATCH):
                group.create_task(noop())


async def harn_scope(n: int) -> None:
    for _ in range(n // BATCH):
        async with scope():
            for _ in range(BATCH):
                spawn(noop)


async def task_group_awaited(n: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            await group.create_task(noop())


async def harn_awaited(n: int) -> None:
    async with scope():
        for _ in range(n):
            await spawn(noop)


async def gather_and_semaphore(n: int) -> None:
    semaphore = asyncio.Semaphore(8)

    async def one(item: int) -> None:
        async with semaphore:
            await noop(item)

    await asyncio.gather(*[one(item) for item in range(n)])


async def each(n: int) -> None:
    await parallel_each(range(n), noop, max_concurrent=8)


async def stream(n: int) -> None:
    async for _ in parallel_each_stream(range(n), noop, max_concurrent=8):
        pass


async def asyncio_timeout(n: int) -> None:
    for _ in range(n):
        async with asyncio.timeout(60):
            await noop()


async def harn_deadline(n: int) -> None:
    for _ in range(n):
        async with deadline("60s"):
            await noop()


def inside(operation: Callable[[int], Awaitable[None]], n: int) -> Callable[[], float]:
    """Time *operation* in a runtime whose start and end are not counted."""

    async def run() -> float:
        async with Runtime():
            gc.collect()
            began = time.perf_counter()
            await operation(n)
            return (time.perf_counter() - began) / n * 1e6

    return lambda: asyncio.run(run())


async def plain_cancel() -> float:
    tasks = [asyncio.ensure_future(asyncio.sleep(3600)) for _ in range(WAITING)]
    await asyncio.sleep(0.01)
    began = time.process_time()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return (time.process_time() - began) * 1e3


async def graceful_stop() -> float:
    async with Runtime():
        handles = [spawn(sleep, "1h") for _ in range(WAITING)]
        await asyncio.sleep(0.01)
        began = time.process_time()
        await asyncio.gather(*(cancel_graceful(handle) for handle in handles))
        return (time.process_time() - began) * 1e3


async def leave_runtime() -> float:
    async with Runtime():
        for _ in range(WAITING):
            spawn(sleep, "1h")
        await asyncio.sleep(0.01)
        began = time.process_time()
    return (time.process_time() - began) * 1e3


WAITING = 1000
SPAWN = f"start and join a no-op, {BATCH} in a block"
AWAIT = "start and await a no-op, one by one"
CAPPED = "a no-op for each of 20,000 items, eight at once"
FLAT = "a no-op for each of n items, eight at once"
LIMIT = "a no-op inside a time limit"
STOP = "stop 1,000 tasks that sleep"


def contests() -> Iterable[Contest]:
    yield Contest(
        SPAWN,
        (
            Contestant("asyncio.TaskGroup", timed_async(task_group, 20_000)),
            Contestant("harn.scope", inside(harn_scope, 20_000)),
        ),
    )
    yield Contest(
        AWAIT,
        (
            Contestant("asyncio.TaskGroup", timed_async(task_group_awaited, 20_000)),
            Contestant("harn.scope", inside(harn_awaited, 20_000)),
        ),
    )
    yield Contest(
        CAPPED,
        (
            Contestant("asyncio.gather + Semaphore(8)", timed_async(gather_and_semaphore, 20_000)),
            Contestant("harn.parallel_each", inside(each, 20_000)),
            Contestant("harn.parallel_each_stream", inside(stream, 20_000)),
        ),
    )
    yield Contest(
        FLAT,
        (
            Contestant("n = 1,000", inside(each, 1_000)),
            Contestant("n = 100,000", inside(each, 100_000)),
        ),
    )
    yield Contest(
        LIMIT,
        (
            Contestant("asyncio.timeout", timed_async(asyncio_timeout, 20_000)),
            Contestant("harn.deadline", inside(harn_deadline, 20_000)),
        ),
    )
    yield Contest(
        STOP,
        (
            Contestant("asyncio: cancel", lambda: asyncio.run(plain_cancel())),
            Contestant("harn.cancel_graceful", lambda: asyncio.run(graceful_stop())),
            Contestant("leaving the runtime", lambda: asyncio.run(leave_runtime())),
        ),
        unit="ms of processor time",
    )


GOALS = (
    Goal(
        "spawn in a scope against TaskGroup",
        SPAWN,
        "harn.scope",
        "asyncio.TaskGroup",
        1.3,
        why="an id, a place in the tree, a frame and a handle for each task; see tasks.md",
    ),
    Goal(
        "parallel_each against gather and a semaphore",
        CAPPED,
        "harn.parallel_each",
        "asyncio.gather + Semaphore(8)",
        1.0,
    ),
    Goal("cost per item, 100,000 against 1,000 items", FLAT, "n = 100,000", "n = 1,000", 1.5),
)
