"""Pools: what a shared, capped, audited, fair budget costs beside asyncio's own pieces.

**Submit and complete** runs 100,000 no-op closures. The bare loop starts one asyncio task for each
and awaits them in turn: no cap, no handle that says more than its value, no order, no record. harn
caps them at ten, gives each a handle and a final snapshot, and writes two receipts about each into
the log in memory; no tracer is configured. The recipe that people write instead (a semaphore in a
task group) and `ThreadPoolExecutor` stand beside them. With 10,000 at a time the garbage collector
has little to do, which spares the bare tasks more than the pool's; that is shown, and no goal.

**A queued task** is the memory of one million of them, traced by `tracemalloc` around the submits,
so the closure (one shared function) is not counted and the handle is. It does not vary and takes
long: one round.

**A dequeue** takes the next of the queue at two sizes: 1,000 tasks in 10 partitions and 1,000,000
in 100,000. `priority` knows no partitions: it has ten priorities at both sizes; with 100,000
distinct ones ("every key a priority") each line is short and the heap of lines is long. The handles
are kept, as by a caller that waits for them: freeing a task is no part of taking it from the queue.

**A durable submit** waits for the disk: alone, and with 1,000 under way. **A journal** of one
million records is opened; its unit is seconds.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import shutil
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.harness import Contest, Contestant, Goal, budget, timed, timed_async
from harn import Runtime, durable, pool_create, pool_wait
from harn.ids import pool_id
from harn.pools.audit import Submitted
from harn.pools.journal_records import (
    VERSION,
    EndRecord,
    PoolRecord,
    StartRecord,
    TaskRecord,
    encode,
)
from harn.pools.queue_strategies import fair_round_robin, fifo, lifo, priority
from harn.pools.task import PoolTask
from harn.pools.task_ids import Names

SUBJECT = "pools: submit, queue, journal"
N = 100_000
QUEUED = 1_000_000
RECORDS = 1_000_000

KINDS = ("fifo", "lifo", "priority", "fair_round_robin", "every key a priority")
NOOP = "submit and complete a no-op"
FEW_NOOPS = "submit and complete a no-op, 10,000 of them"
MEMORY = "one of a million queued tasks"
FEW, MANY = "dequeue from 1,000", "dequeue from 1,000,000"
DURABLE = "durable submit"
OPEN = "open a journal of a million records"


Collect = Callable[[list[PoolTask]], Awaitable[None]]


async def noop() -> None:
    pass


async def bare_loop(n: int) -> None:
    tasks = [asyncio.create_task(noop()) for _ in range(n)]
    for task in tasks:
        await task


async def bare_gather(n: int) -> None:
    await asyncio.gather(*[asyncio.create_task(noop()) for _ in range(n)])


async def semaphore_and_group(n: int) -> None:
    semaphore = asyncio.Semaphore(10)

    async def one() -> None:
        async with semaphore:
            await noop()

    async with asyncio.TaskGroup() as group:
        for _ in range(n):
            group.create_task(one())


def executor(n: int) -> None:
    with ThreadPoolExecutor(10) as threads:
        for future in [threads.submit(int) for _ in range(n)]:
            future.result()


async def snapshots(tasks: list[PoolTask]) -> None:
    await pool_wait(tasks)


async def results(tasks: list[PoolTask]) -> None:
    for task in tasks:
        await task


def pooled(n: int, collect: Collect = snapshots, **options: object) -> Callable[[], float]:
    async def inside() -> float:
        async with Runtime():
            pool = await pool_create(max_concurrent=10, **options)  # type: ignore[arg-type]
            gc.collect()
            began = time.perf_counter()
            tasks = [await pool.submit(noop) for _ in range(n)]
            await collect(tasks)
            return (time.perf_counter() - began) / n * 1e6

    return lambda: asyncio.run(inside())


def bytes_each() -> float:

    async def inside() -> float:
        async with Runtime():
            pool = await pool_create(max_concurrent=1)
            await pool.submit(asyncio.Event().wait)
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(QUEUED):
                await pool.submit(noop)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            return (after - before) / QUEUED

    return asyncio.run(inside())


SUBMITTED = Submitted(Names("pool_bench", "bench"), 1, 0, 0, None, None, "user")


def dequeues(kind: str, tasks: int, keys: int) -> Callable[[], float]:
    strategies = {"fifo": fifo, "lifo": lifo, "fair_round_robin": fair_round_robin}
    strategy = strategies.get(kind, priority)()
    levels = keys if kind == "every key a priority" else 10
    names = [f"key-{number}" for number in range(keys)]

    def run() -> float:
        rounds, spent = max(1, 40_000 // tasks), 0.0
        taken = min(tasks, 100_000)
        for _ in range(rounds):
            queue, handles = strategy.queue(), []
            for seq in range(tasks):
                key = names[seq % keys]
                handles.append(PoolTask(None, SUBMITTED, None, seq % levels, key, None))
                queue.push(handles[-1])
            gc.collect()
            gc.disable()
            began = time.perf_counter()
            for _ in range(taken):
                queue.pop()
            spent += time.perf_counter() - began
            gc.enable()
        return spent / (rounds * taken) * 1e6

    return run


@durable(name="bench:noop")
async def journalled(number: int) -> None:
    pass


def durable_submits(at_once: int, n: int) -> Callable[[], float]:
    async def inside(directory: str) -> float:
        async with Runtime(state_dir=directory, storage="memory://"):
            pool = await pool_create(name="bench", scope="pipeline", pipeline_id="p")
            await pool.submit(asyncio.Event().wait)
            began = time.perf_counter()
            for first in range(0, n, at_once):
                numbers = range(first, first + at_once)
                await asyncio.gather(*(pool.submit(partial(journalled, k)) for k in numbers))
            return (time.perf_counter() - began) / n * 1e6

    def run() -> float:
        directory = tempfile.mkdtemp()
        try:
            return asyncio.run(inside(directory))
        finally:
            shutil.rmtree(directory)

    return run


@functools.cache
def long_journal() -> bytes:
    """Write a million records once; each round opens a copy."""
    now = time.time_ns() // 1_000_000
    names = Names(pool_id("pipeline", "p", "bench"), "bench")
    lines = [encode(PoolRecord(VERSION, names.id, "bench", "pipeline", "p", 1, now, 0))]
    for seq in range(1, RECORDS // 3 + 1):
        id = names.task(now, seq)
        lines.append(encode(TaskRecord(VERSION, seq, id, now, idempotency_key=f"k{seq}")))
        lines.append(encode(StartRecord(VERSION, seq, now)))
        lines.append(encode(EndRecord(VERSION, seq, now, "completed")))
    return b"".join(lines)


def opening() -> float:
    directory = Path(tempfile.mkdtemp())
    (directory / "pools").mkdir()
    (directory / "pools" / "p__bench.jsonl").write_bytes(long_journal())
    try:
        return asyncio.run(_open(directory))
    finally:
        shutil.rmtree(directory)


async def _open(directory: Path) -> float:
    async with Runtime(state_dir=directory, storage="memory://"):
        gc.collect()
        began = time.perf_counter()
        pool = await pool_create(name="bench", scope="pipeline", pipeline_id="p")
        spent = time.perf_counter() - began
        assert pool.snapshot(tasks=False).total == RECORDS // 3
        return spent


def contests() -> Iterable[Contest]:
    yield Contest(
        NOOP,
        (
            Contestant("bare create_task loop", timed_async(bare_loop, N), "no cap, no record"),
            Contestant("create_task and gather", timed_async(bare_gather, N), "no cap, no record"),
            Contestant("harn pool", pooled(N), "cap, handle, snapshot, audit"),
            Contestant("harn pool, each awaited", pooled(N, results), "its result, as bare tasks"),
            Contestant("harn pool, fair", pooled(N, queue="fair_round_robin")),
            Contestant("Semaphore in a TaskGroup", timed_async(semaphore_and_group, N), "cap"),
            Contestant("ThreadPoolExecutor", timed(executor, N // 10), "cap, threads"),
        ),
    )
    yield Contest(
        FEW_NOOPS,
        (
            Contestant("bare create_task loop", timed_async(bare_loop, N // 10)),
            Contestant("harn pool", pooled(N // 10), "cap, handle, snapshot, audit"),
        ),
    )
    yield Contest(
        MEMORY,
        (Contestant("harn pool", bytes_each), budget(600)),
        "bytes",
        rounds=1,
        warm_up=False,
    )
    for kind in KINDS:
        yield Contest(f"{FEW}, {kind}", (Contestant("harn pool", dequeues(kind, 1_000, 10)),))
        yield Contest(
            f"{MANY}, {kind}", (Contestant("harn pool", dequeues(kind, 1_000_000, 100_000)),)
        )
    yield Contest(
        DURABLE,
        (
            Contestant("one at a time", durable_submits(1, 300)),
            Contestant("1,000 under way", durable_submits(1000, 5000)),
        ),
    )
    yield Contest(OPEN, (Contestant("harn pool", opening), budget(5)), "s")


GOALS = [
    Goal("a pool is no dearer than bare tasks", NOOP, "harn pool", "bare create_task loop", 1.0),
    Goal("a queued task fits its budget", MEMORY, "harn pool", "the budget", 1.0),
    *(
        Goal(
            f"a long queue is as quick as a short one, {kind}",
            f"{MANY}, {kind}",
            "harn pool",
            "harn pool",
            2.0,
            against_contest=f"{FEW}, {kind}",
        )
        for kind in KINDS
    ),
    Goal(
        "a burst shares syncs",
        DURABLE,
        "one at a time",
        "1,000 under way",
        None,
        at_least=20.0,
        why="the faster the disk syncs, the less there is to share",
    ),
    Goal("a long journal opens in time", OPEN, "harn pool", "the budget", 1.0),
]
