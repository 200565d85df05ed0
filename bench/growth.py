"""How the cost of one operation grows: with the backlog, with the keys, with live reservations.

*Claim and ack* of one job, one by one (and one enqueued, so that the backlog stays), from a SQLite
file that holds a backlog of 1,000 to
1,000,000 jobs of ten tenants under fair share, and from one of 20,000 jobs with 10 to 10,000
tenants, flat or as paths (`c7/u107`); of these also *a claim of 100* alone. *Acquire* of one
reservation while 10 to 100,000 count in the window. The unit is processor
time of the process, its writer thread included: the disk costs the same at each size and would hide
the curve in its moods. The bare loop (`bench/peer_scripts/queue_bare_sqlite.py` does the same) has
one index on what is ready and neither tenants nor leases; pyrate-limiter runs in its own process.

Files are filled once; what cannot be filled within a minute is left out.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import apsw

from bench.harness import Contest, Contestant, Goal, LeftOut
from bench.peers import PYRATE, contestant
from harn import (
    Bucket,
    NewJob,
    Runtime,
    SchedulerPolicy,
    durable_rate_limit_acquire,
    worker_queue,
)

SUBJECT = "growth: backlog, keys, reservations"

FAIR = SchedulerPolicy(strategy="drr")
TREE = SchedulerPolicy(strategy="drr", hierarchy="/")
LEAVES, MANY = "claim and ack, by leaves of a tree", "claim of 100, by leaves of a tree"
BACKLOG, KEYS, LIVE = "claim and ack, by backlog", "claim and ack, by keys", "acquire, by live"
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
TENANTS = (10, 100, 1_000, 10_000)
RESERVATIONS = (10, 1_000, 10_000, 100_000)
N = 100
FILL_SECONDS = 60
HOUR_MS = 3_600_000


def home() -> Path:
    where = Path(tempfile.mkdtemp(prefix="harn-bench-"))
    atexit.register(shutil.rmtree, where, ignore_errors=True)
    return where


def tenant(n: int, keys: int, in_tree: bool) -> str:
    """Name one of so many keys; in a tree, one of up to a hundred customers and its user."""
    n %= keys
    return f"c{n % 100}/u{n}" if in_tree else f"t{n}"


@functools.cache
def filled(backlog: int, keys: int, in_tree: bool = False) -> str | None:
    """Make a file with so many jobs; return its URL, or None if that takes too long."""
    url = f"sqlite:///{home()}/q.sqlite"

    async def fill() -> bool:
        until = time.perf_counter() + FILL_SECONDS
        async with Runtime(storage=url):
            queue = worker_queue("q", TREE if in_tree else FAIR)
            for start in range(0, backlog, 5000):
                many = range(start, min(start + 5000, backlog))
                await queue.enqueue_many(
                    [NewJob(n, tenant_id=tenant(n, keys, in_tree)) for n in many]
                )
                if time.perf_counter() > until:
                    return False
        return True

    return url if asyncio.run(fill()) else None


def claims(backlog: int, keys: int, in_tree: bool = False) -> float:
    """Return the processor time of a claim and its ack, in microseconds."""
    url = filled(backlog, keys, in_tree)
    if url is None:
        raise LeftOut(f"{backlog:,} jobs could not be put in within {FILL_SECONDS} s")

    async def some(n: int) -> None:
        queue = worker_queue("q", TREE if in_tree else FAIR)
        for _ in range(n):
            claim = await queue.claim_next("w")
            assert claim is not None
            await claim.ack()
            await queue.enqueue(0, tenant_id=tenant(0, keys, in_tree))

    async def inside() -> float:
        async with Runtime(storage=url):
            return await _processor_time(some)

    return asyncio.run(inside())


def claims_of_many(keys: int, in_tree: bool) -> float:
    """Return the processor time of a job in a claim of a hundred, in microseconds."""
    url = filled(20_000, keys, in_tree)
    assert url is not None

    async def inside() -> float:
        spent = 0.0
        async with Runtime(storage=url):
            queue = worker_queue("q", TREE if in_tree else FAIR)
            for round in range(6):
                began = time.process_time()
                held = await queue.claim_many("w", 100)
                if round:  # the first one warms up
                    spent += time.process_time() - began
                await asyncio.gather(*(claim.ack() for claim in held))
                await queue.enqueue_many([NewJob(0, tenant_id=c.job.tenant_id) for c in held])
        return spent / 500 * 1e6

    return asyncio.run(inside())


async def _processor_time(some: Callable[[int], Awaitable[None]]) -> float:
    await some(10)
    began = time.process_time()
    await some(N)
    return (time.process_time() - began) / N * 1e6


@functools.cache
def bare_filled(backlog: int) -> apsw.Connection:
    db = apsw.Connection(str(home() / "bare.sqlite"))
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("CREATE TABLE j (id INTEGER PRIMARY KEY, state INT NOT NULL DEFAULT 0, body)")
    with db:
        db.executemany("INSERT INTO j (body) VALUES (?)", ((n,) for n in range(backlog)))
    db.execute("CREATE INDEX ready ON j (id) WHERE state = 0")
    return db


def bare_claims(backlog: int) -> float:
    db = bare_filled(backlog)
    began = time.process_time()
    for _ in range(N):
        [(id,)] = db.execute(
            "UPDATE j SET state = 1 WHERE id ="
            " (SELECT id FROM j WHERE state = 0 ORDER BY id LIMIT 1) RETURNING id"
        ).fetchall()
        db.execute("UPDATE j SET state = 2 WHERE id = ?", (id,))
        db.execute("INSERT INTO j (body) VALUES (0)")
    return (time.process_time() - began) / N * 1e6


@functools.cache
def reserved(live: int) -> Path:
    path = home() / "limits.sqlite"
    bucket = Bucket("k", 10**9, window_ms=HOUR_MS)

    async def fill() -> None:
        async with Runtime():
            for start in range(0, live, 500):
                many = range(min(500, live - start))
                await asyncio.gather(
                    *(durable_rate_limit_acquire(buckets=[bucket], state_path=path) for _ in many)
                )

    asyncio.run(fill())
    return path


def acquires(live: int) -> float:
    path = reserved(live)
    bucket = Bucket("k", 10**9, window_ms=HOUR_MS)

    async def some(n: int) -> None:
        for _ in range(n):
            await durable_rate_limit_acquire(buckets=[bucket], state_path=path)

    async def inside() -> float:
        async with Runtime():
            return await _processor_time(some)

    return asyncio.run(inside())


def points(
    series: str, sizes: Iterable[int], run: Callable[[int], float], unit: str
) -> Iterable[Contestant]:
    for size in sizes:
        yield Contestant(
            f"{series}, {size:,} {unit}", functools.partial(run, size), series=series, size=size
        )


def leaves(run: Callable[[int, bool], float]) -> Iterable[Contestant]:
    for kind in ("flat", "tree"):
        for size in (10, 10_000):
            yield Contestant(
                f"{kind}, {size:,} tenants", functools.partial(run, size, kind == "tree")
            )


def contests() -> Iterable[Contest]:
    """Draw the three curves, and set trees beside flat queues."""
    yield Contest(
        BACKLOG,
        (
            *points("bare apsw", BACKLOGS, bare_claims, "jobs"),
            *points("harn", BACKLOGS, lambda size: claims(size, 10), "jobs"),
        ),
        "µs of processor time",
    )
    yield Contest(
        KEYS,
        tuple(points("harn", TENANTS, lambda size: claims(20_000, size), "tenants")),
        "µs of processor time",
    )
    by_leaves = tuple(leaves(lambda size, in_tree: claims(20_000, size, in_tree)))
    yield Contest(LEAVES, by_leaves, "µs of processor time")
    yield Contest(MANY, tuple(leaves(claims_of_many)), "µs of processor time a job")
    yield Contest(
        LIVE,
        (
            *points("harn", RESERVATIONS, acquires, "live"),
            *(
                each
                for size in RESERVATIONS
                for each in contestant(
                    PYRATE,
                    "limit_contest",
                    name=f"pyrate-limiter, {size:,} live",
                    series="pyrate-limiter",
                    size=size,
                    contest="processor time",
                    who="pyrate-limiter",
                    n=50,
                    full=size,
                )
            ),
        ),
        "µs of processor time",
    )


GOALS = [
    Goal("a claim from 1,000,000 jobs, against 1,000", BACKLOG, "harn, 1,000,000 jobs",
         "harn, 1,000 jobs", at_most=2.0),
    Goal("a claim among 10,000 tenants, against 10", KEYS, "harn, 10,000 tenants",
         "harn, 10 tenants", at_most=2.0),
    Goal("a claim among 10,000 leaves of a tree, against 10", LEAVES, "tree, 10,000 tenants",
         "tree, 10 tenants", at_most=2.0),
    Goal("a claim of 100 among 10,000 leaves, against a flat queue", MANY, "tree, 10,000 tenants",
         "flat, 10,000 tenants", at_most=3.0,
         why="each pick walks from the root to its leaf; see fair-share.md"),
    Goal("an acquire among 100,000 live, against 10", LIVE, "harn, 100,000 live",
         "harn, 10 live", at_most=1.2),
]  # fmt: skip
