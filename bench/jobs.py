"""Jobs as an application uses them: what `submit` and `result` add, and reading among settled jobs.

*A job's life* is enqueued a hundred at once, each by a call of its own, and drained with a hundred
in flight, or one by one; then the same jobs are submitted as a function and their results awaited.
A third contestant enqueues, and waits for a bare future of each job that its handler resolves: what
asyncio's own tasks add when the results of a hundred jobs are gathered. A fourth submits the same
function to a pool that processes share, of a hundred slots.
*Reading* is `queue.job` and a page of `queue.jobs` in a SQLite file that holds 1,000 or 1,000,000
settled jobs of ten tenants, against one indexed read of the job's row through the store. 3,000 jobs
are read, spread over the file, as by a service that has run for a while: in the first 300 reads
SQLite reads the inner pages of its trees, too, and `queue.job` takes twice as long as one read.
The files are filled by SQL; each has 100 jobs that are ready, scheduled and in flight.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import apsw

from bench.growth import home
from bench.harness import Contest, Contestant, Goal
from bench.queue import noop, on_sqlite
from harn import Runtime, SchedulerPolicy, drain, durable, pool_create, worker_queue
from harn.storage import Store
from harn.storage.operations import ask
from harn.workers import WorkerQueue

SUBJECT = "jobs: results, states, pages"

LIVES = "a job's life, 100 at once"
SINGLE = "a job's life, one by one"
ONE = "one job among settled ones"
PAGE = "a page of 20 jobs"
FAIR = SchedulerPolicy(strategy="drr")
JOBS, SINGLES, READS = 2000, 150, 3000
SIZES = (1_000, 1_000_000)
STATUSES = ("ready", "scheduled", "in_flight", "acked", "dead", "cancelled")
PLAIN, JOB = "enqueue, drain", "submit, drain, result"
BARE = "enqueue, drain, a bare future each"
POOL = "submit to a tenant or org pool, result"

Life = Callable[[int], Awaitable[float]]


@durable(name="bench:job")
async def function(n: int) -> None:
    """Do nothing, as a function that is submitted."""


async def plain_life(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    for start in range(0, n, 100):
        await asyncio.gather(*(queue.enqueue(i) for i in range(start, start + 100)))
    await drain("q", noop, concurrency=100, policy=FAIR)
    return (time.perf_counter() - began) / n * 1e6


async def bare_life(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    for start in range(0, n, 100):
        await asyncio.gather(*(queue.enqueue(i) for i in range(start, start + 100)))
    ended = [asyncio.get_running_loop().create_future() for _ in range(n)]

    async def handler(job: Any) -> None:
        ended[job.payload].set_result(None)

    async def result(future: asyncio.Future[None]) -> None:
        await future

    working = asyncio.ensure_future(drain("q", handler, concurrency=100, policy=FAIR))
    await asyncio.gather(*map(result, ended))
    await working
    return (time.perf_counter() - began) / n * 1e6


async def job_life(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    receipts = []
    for start in range(0, n, 100):
        receipts += await asyncio.gather(
            *(queue.submit(function, i) for i in range(start, start + 100))
        )
    working = asyncio.ensure_future(drain("q", concurrency=100, policy=FAIR))
    await asyncio.gather(*(receipt.result() for receipt in receipts))
    await working
    return (time.perf_counter() - began) / n * 1e6


async def pool_life(n: int) -> float:
    pool = await pool_create(name="p", scope="org", scope_id="o", queue="fifo", max_concurrent=100)
    began = time.perf_counter()
    tasks = []
    for start in range(0, n, 100):
        tasks += await asyncio.gather(
            *(pool.submit(function, i) for i in range(start, start + 100))
        )
    await asyncio.gather(*tasks)
    return (time.perf_counter() - began) / n * 1e6


async def plain_single(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    for i in range(n):
        await queue.enqueue(i)
        await drain("q", noop, policy=FAIR)
    return (time.perf_counter() - began) / n * 1e6


async def job_single(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    for i in range(n):
        receipt = await queue.submit(function, i)
        await drain("q", policy=FAIR)
        await receipt.result()
    return (time.perf_counter() - began) / n * 1e6


# -- among settled jobs ----------------------------------------------------------------------------

COPIES = """
WITH RECURSIVE n(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
SELECT e.topic_id, n.n, e.kind, e.payload, e.headers, e.occurred_at_ms FROM n, events e
WHERE e.id = 1 AND e.topic_id = (SELECT topic_id FROM topics WHERE name = ?2)
"""
ROWS = """
WITH RECURSIVE n(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)
INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, attempts, max_attempts,
    settled_at, tenant_id, response)
SELECT j.queue_id, n.n, 't' || (n.n % 10), 1,
    CASE WHEN n.n > ?1 - 300 THEN (?1 - n.n) / 100
        WHEN n.n % 20 = 0 THEN 6 WHEN n.n % 20 = 1 THEN 7 ELSE 4 END,
    j.enqueued_at,
    CASE WHEN n.n > ?1 - 300 AND n.n <= ?1 - 100 THEN j.enqueued_at + 86400000 END, 1, 5,
    CASE WHEN n.n <= ?1 - 300 THEN j.settled_at END, 't' || (n.n % 10),
    CASE WHEN n.n <= ?1 - 300 THEN n.n END
FROM n, jobs j WHERE j.id = 1
"""


@functools.cache
def settled(size: int) -> str:
    """Make a file with so many settled jobs; return its URL."""
    path = home() / "settled.sqlite"

    async def first() -> None:
        async with Runtime(storage=f"sqlite:///{path}"):
            await worker_queue("q", FAIR).enqueue({"pr": 1984}, tenant_id="t1")
            await drain("q", noop, policy=FAIR)

    asyncio.run(first())
    with apsw.Connection(str(path)) as db:
        for topic in ("worker.q", "worker.q.responses"):
            db.execute(COPIES, (size + 300, topic))
            db.execute("UPDATE topics SET head = ? WHERE name = ?", (size + 300, topic))
        db.execute(ROWS, (size + 300,))
    return f"sqlite:///{path}"


Read = Callable[[Runtime, WorkerQueue, int], Awaitable[Any]]


def reading(size: int, read: Read, n: int = READS) -> float:
    """Return what one *read* costs, of job after job, in microseconds."""
    url = settled(size)

    async def inside() -> float:
        async with Runtime(storage=url) as runtime:
            queue = worker_queue("q", FAIR)
            await read(runtime, queue, 1)
            began = time.perf_counter()
            for i in range(n):
                assert await read(runtime, queue, 1 + i * size // n)
            return (time.perf_counter() - began) / n * 1e6

    return asyncio.run(inside())


async def one_row(runtime: Runtime, queue: WorkerQueue, id: int) -> Any:
    def read() -> Any:
        return (yield ask("one_job", queue_id=1, id=id))

    return await runtime.service(Store).run(read, write=False)


async def one_job(runtime: Runtime, queue: WorkerQueue, id: int) -> Any:
    return await queue.job(id)


def page_of(status: Any, tenant_id: str | None) -> Read:
    async def read(runtime: Runtime, queue: WorkerQueue, id: int) -> Any:
        return await queue.jobs(status=status, tenant_id=tenant_id, limit=20)

    return read


def pages() -> dict[str, Read]:
    found = {status: page_of(status, None) for status in STATUSES}
    found |= {f"{status} of a tenant": page_of(status, "t1") for status in ("acked", "cancelled")}
    return found | {"of a tenant": page_of(None, "t1"), "all": page_of(None, None)}


def contests() -> Iterable[Contest]:
    """Compare lives with and without results, and reads at both sizes."""
    lives: dict[str, tuple[int, dict[str, Life]]] = {
        LIVES: (JOBS, {PLAIN: plain_life, BARE: bare_life, JOB: job_life, POOL: pool_life}),
        SINGLE: (SINGLES, {PLAIN: plain_single, JOB: job_single}),
    }
    for name, (n, ways) in lives.items():
        players = (Contestant(w, functools.partial(on_sqlite, life, n)) for w, life in ways.items())
        yield Contest(name, tuple(players), "µs/job")
    yield Contest(ONE, tuple(at_sizes({"one indexed read": one_row, "queue.job": one_job}, READS)))
    yield Contest(PAGE, tuple(at_sizes(pages(), 50)))


def at_sizes(reads: dict[str, Read], n: int) -> Iterable[Contestant]:
    for name, read in reads.items():
        for size in SIZES:
            run = functools.partial(reading, size, read, n)
            yield Contestant(f"{name}, {size:,} settled", run)


FEW, MANY = (f"{size:,} settled" for size in SIZES)
GOALS = [
    Goal("submit and result, against enqueue (100 at once)", LIVES, JOB, PLAIN, at_most=1.15,
         why="1.10x to 1.25x in seven runs: a task and a wait for each result; see queue-cost.md"),
    Goal("submit and result, against bare futures (100 at once)", LIVES, JOB, BARE, at_most=1.15,
         why="1.07x to 1.18x in five runs: a wait for each result; see queue-cost.md"),
    Goal("a shared pool's call, against a job (100 at once)", LIVES, POOL, JOB, at_most=1.3),
    Goal("submit and result, against enqueue (one by one)", SINGLE, JOB, PLAIN, at_most=1.15),
    Goal("queue.job among 1,000,000, against one indexed read", ONE, f"queue.job, {MANY}",
         f"one indexed read, {MANY}", at_most=1.5),
    Goal("queue.job among 1,000,000, against 1,000", ONE, f"queue.job, {MANY}",
         f"queue.job, {FEW}", at_most=1.5),
    *(
        Goal(f"a page ({name}) among 1,000,000, against 1,000", PAGE, f"{name}, {MANY}",
             f"{name}, {FEW}", at_most=1.5)
        for name in pages()
    ),
]  # fmt: skip
