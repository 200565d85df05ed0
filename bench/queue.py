"""A job's whole life in a worker queue, fsynced, with the fair share on, against bare loops.

The bare loops do the least that a queue can: one table, an index on what is ready, enqueue, claim
and ack, with `synchronous=FULL` (SQLite) or `fsync=on` (PostgreSQL). They keep no log, no
responses, no attempts and no fairness. Ours does all of that in the same number of commits.
PostgreSQL is started from the test helpers; without its binaries that part is left out.
"""

from __future__ import annotations

import asyncio
import atexit
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from bench.harness import Contest, Contestant, Goal
from harn import NewJob, Runtime, SchedulerPolicy, drain, worker_queue

SUBJECT = "queue: durable jobs"

JOBS = 2000
SINGLE = 150
FAIR = SchedulerPolicy(strategy="drr")
FIFO = SchedulerPolicy()
TENANTS = [f"tenant-{n}" for n in range(10)]


async def noop(job: Any) -> None:
    """Do nothing, as a handler."""


def jobs(n: int) -> list[NewJob]:
    return [NewJob({"n": i}, tenant_id=TENANTS[i % 10]) for i in range(n)]


# -- SQLite ---------------------------------------------------------------------------------------


def bare_sqlite(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("CREATE TABLE j (id INTEGER PRIMARY KEY, state INT, until INT, body BLOB)")
    db.execute("CREATE INDEX ready ON j (id) WHERE state = 0")
    return db


def bare_life(batch: int, n: int) -> float:
    with tempfile.TemporaryDirectory() as home:
        db = bare_sqlite(Path(home) / "bare.sqlite")
        began = time.perf_counter()
        for start in range(0, n, batch):
            body = [(0, b'{"n":1}')] * min(batch, n - start)
            with db:
                db.executemany("INSERT INTO j (state, body) VALUES (?, ?)", body)
            with db:
                rows = db.execute(
                    "SELECT id, body FROM j WHERE state = 0 ORDER BY id LIMIT ?", (batch,)
                ).fetchall()
                db.executemany(
                    "UPDATE j SET state = 1, until = 9 WHERE id = ?", [(r[0],) for r in rows]
                )
            with db:
                db.executemany("UPDATE j SET state = 2 WHERE id = ?", [(r[0],) for r in rows])
        cost = (time.perf_counter() - began) / n * 1e6
        db.close()
        return cost


def on_sqlite(life: Callable[[int], Awaitable[float]], n: int) -> float:
    async def inside(home: str) -> float:
        async with Runtime(storage=f"sqlite:///{home}/q.sqlite"):
            await worker_queue("warm").enqueue(1)
            return await life(n)

    with tempfile.TemporaryDirectory() as home:
        return asyncio.run(inside(home))


async def batched_life(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    for start in range(0, n, 100):
        await queue.enqueue_many(jobs(min(100, n - start)))
    await drain("q", noop, concurrency=100, policy=FAIR)
    return (time.perf_counter() - began) / n * 1e6


async def single_life(n: int) -> float:
    queue = worker_queue("q", FAIR)
    began = time.perf_counter()
    for job in jobs(n):
        await queue.enqueue(job.payload, tenant_id=job.tenant_id)
        claim = await queue.claim_next("w")
        assert claim is not None
        await claim.ack("ok")
    return (time.perf_counter() - began) / n * 1e6


# -- PostgreSQL ------------------------------------------------------------------------------------


class Postgres:
    """A server of our own with `fsync=on`, started when it is first needed."""

    _server: Any = None

    @classmethod
    def dsn(cls) -> str:
        if cls._server is None:
            from tests.postgres import Server

            cls._server = Server(Path(tempfile.mkdtemp(prefix="harn-bench-pg-")), fsync=True)
            cls._server.make()
            cls._server.start()
            atexit.register(cls._server.stop, "immediate")
        return str(cls._server.dsn)


def harn_on_postgres(concurrency: int, n: int, *, enqueue_only: bool = False) -> float:
    async def inside() -> float:
        url = f"{Postgres.dsn()}?schema=b{time.time_ns()}"
        async with Runtime(storage=url):
            queue = worker_queue("q", FAIR)
            await queue.enqueue_many(jobs(1))
            began = time.perf_counter()
            for _ in range(0, n, 100):
                await queue.enqueue_many(jobs(100))
            if not enqueue_only:
                began = time.perf_counter()
                await drain("q", noop, concurrency=concurrency, policy=FAIR)
            return (time.perf_counter() - began) / n * 1e6

    return asyncio.run(inside())


def bare_on_postgres(batch: int, n: int, *, enqueue_only: bool = False) -> float:
    import psycopg

    with psycopg.connect(Postgres.dsn(), autocommit=True) as db:
        table = f"j{time.time_ns()}"
        db.execute(f"CREATE TABLE {table} (id bigserial PRIMARY KEY, state int, body bytea)")
        db.execute(f"CREATE INDEX ON {table} (id) WHERE state = 0")
        began = time.perf_counter()
        for _ in range(0, n, 100):
            with db.transaction(), db.cursor() as cursor:
                rows = [(b'{"n":1}',)] * 100
                cursor.executemany(f"INSERT INTO {table} (state, body) VALUES (0, %s)", rows)
        if enqueue_only:
            return (time.perf_counter() - began) / n * 1e6
        began = time.perf_counter()
        done = 0
        while done < n:
            with db.transaction():
                found = db.execute(
                    f"SELECT id FROM {table} WHERE state = 0 ORDER BY id LIMIT %s"
                    " FOR UPDATE SKIP LOCKED",
                    (batch,),
                ).fetchall()
                ids = [row[0] for row in found]
                db.execute(f"UPDATE {table} SET state = 1 WHERE id = ANY (%s)", (ids,))
            db.execute(f"UPDATE {table} SET state = 2 WHERE id = ANY (%s)", (ids,))
            done += len(ids)
        return (time.perf_counter() - began) / n * 1e6


# -- claims at size ------------------------------------------------------------------------------


def claim_p99(backlog: int, keys: int, policy: SchedulerPolicy, n: int = 1000) -> float:
    """Return the 99th percentile of one claim, in microseconds of processor time, in memory.

    There is no fsync to hide in, and no neighbour on the machine to blame.
    """

    async def inside() -> float:
        async with Runtime():
            queue = worker_queue("q", policy)
            for start in range(0, backlog, 5000):
                size = min(5000, backlog - start)
                await queue.enqueue_many(
                    [NewJob(i, tenant_id=f"t{(start + i) % keys}") for i in range(size)]
                )
            costs = []
            for _ in range(n):
                began = time.thread_time()
                claim = await queue.claim_next("w")
                costs.append(time.thread_time() - began)
                assert claim is not None
                await claim.ack()
            return statistics.quantiles(costs[50:], n=100)[98] * 1e6

    return asyncio.run(inside())


def contests() -> Iterable[Contest]:
    yield Contest(
        "SQLite: a job's life, 100 in flight",
        (
            Contestant("bare apsw, batches of 100", lambda: bare_life(100, JOBS)),
            Contestant("harn, fair share", lambda: on_sqlite(batched_life, JOBS)),
        ),
        "µs/job",
    )
    yield Contest(
        "SQLite: a job's life, one by one",
        (
            Contestant("bare apsw, a commit per step", lambda: bare_life(1, SINGLE)),
            Contestant("harn, fair share", lambda: on_sqlite(single_life, SINGLE)),
        ),
        "µs/job",
    )
    for concurrency in (10, 100):
        yield Contest(
            f"PostgreSQL: claim to ack, concurrency {concurrency}",
            (
                Contestant("bare psycopg, batches", partial(bare_on_postgres, concurrency, 1000)),
                Contestant("harn, fair share", partial(harn_on_postgres, concurrency, 1000)),
            ),
            "µs/job",
        )
    yield Contest(
        "PostgreSQL: enqueue in batches of 100",
        (
            Contestant("bare executemany", partial(bare_on_postgres, 1, 1000, enqueue_only=True)),
            Contestant("harn", partial(harn_on_postgres, 1, 1000, enqueue_only=True)),
        ),
        "µs/job",
    )
    yield Contest(
        "claim p99 by size",
        (
            Contestant("1,000 jobs, 10 keys", lambda: claim_p99(1000, 10, FAIR)),
            Contestant("100,000 jobs, 10 keys", lambda: claim_p99(100_000, 10, FAIR)),
            Contestant("20,000 jobs, 10,000 keys", lambda: claim_p99(20_000, 10_000, FAIR)),
            Contestant("1,000 jobs, fifo", lambda: claim_p99(1000, 10, FIFO)),
        ),
        "µs",
    )


GOALS = [
    Goal(
        "PostgreSQL: batches of 100 enqueued at most 1.5x of executemany",
        "PostgreSQL: enqueue in batches of 100",
        "harn",
        "bare executemany",
        at_most=1.5,
    ),
    Goal(
        "a batched life costs at most 5x of the bare loop",
        "SQLite: a job's life, 100 in flight",
        "harn, fair share",
        "bare apsw, batches of 100",
        at_most=5.0,
        why="four records, three indexes and two threads of Python a job; see queue-cost.md",
    ),
    Goal(
        "one by one at most 1.6x of the bare loop",
        "SQLite: a job's life, one by one",
        "harn, fair share",
        "bare apsw, a commit per step",
        at_most=1.6,
        why="34 statements instead of 6, on a thread of their own; see queue-cost.md",
    ),
    Goal(
        "a claim from 100,000 jobs costs at most 2x of one from 1,000",
        "claim p99 by size",
        "100,000 jobs, 10 keys",
        "1,000 jobs, 10 keys",
        at_most=2.0,
    ),
    Goal(
        "a claim among 10,000 keys costs at most 2x of one among 10",
        "claim p99 by size",
        "20,000 jobs, 10,000 keys",
        "1,000 jobs, 10 keys",
        at_most=2.0,
    ),
    Goal(
        "the fair share costs at most 1.3x of fifo",
        "claim p99 by size",
        "1,000 jobs, 10 keys",
        "1,000 jobs, fifo",
        at_most=1.3,
        why="it reads the keys, then the jobs of one; and a p99 is often the garbage collector's",
    ),
]

if __name__ == "__main__":
    print(bare_life(100, JOBS), on_sqlite(batched_life, JOBS), file=sys.stderr)
