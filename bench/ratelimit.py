"""The limiter against the bare engine below it, and against pyrate-limiter's SQLite bucket.

The floor is one transaction per acquire on a bare connection that keeps nothing but the row:
`BEGIN IMMEDIATE`, one insert, `COMMIT`. It knows no limit, no line, no other bucket and no event
loop. All of them write with `synchronous=NORMAL`, the durability of reservations (it survives a
killed process). pyrate-limiter takes part where it and filelock are installed, in the mode that
several processes may share (`use_file_lock=True`: WAL, `synchronous=NORMAL`), asked from a loop as
ours is.

"Full" means that so many reservations already count in the window.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import apsw

from bench.harness import Contest, Contestant, Goal
from harn import Bucket, Runtime, durable_rate_limit_acquire

SUBJECT = "ratelimit"
LIMIT = 10**9
HOUR_MS = 3_600_000
ONE = 2000
MANY = 16_000
TOGETHER = 64
CROWD = 4


def home() -> Path:
    return Path(tempfile.mkdtemp(prefix="harn-bench-"))


def bare(path: Path, n: int) -> float:
    """One transaction per acquire, and nothing else; seconds."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(30_000)
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute(
        "CREATE TABLE IF NOT EXISTS rows (key TEXT, at INTEGER, units INTEGER);"
        "CREATE INDEX IF NOT EXISTS by_key ON rows (key, at)"
    )
    began = time.perf_counter()
    for _ in range(n):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows VALUES ('k', ?, 1)", (time.monotonic_ns() // 1000,))
        connection.execute("COMMIT")
    took = time.perf_counter() - began
    connection.close()
    return took


async def acquire_in_turn(path: Path, n: int, buckets: int = 1, full: int = 0) -> float:
    """Acquire one after the other; seconds."""
    async with Runtime():
        wanted = [Bucket(f"k{i}", LIMIT, window_ms=HOUR_MS) for i in range(buckets)]
        await fill(path, full)
        await durable_rate_limit_acquire(buckets=wanted, state_path=path)
        began = time.perf_counter()
        for _ in range(n):
            await durable_rate_limit_acquire(buckets=wanted, state_path=path)
        return time.perf_counter() - began


async def acquire_together(path: Path, n: int, full: int = 0) -> float:
    """Acquire with sixty-four under way at once; seconds."""
    async with Runtime():
        await fill(path, full)
        await durable_rate_limit_acquire(key="k0", limit=LIMIT, window_ms=HOUR_MS, state_path=path)

        async def some(count: int) -> None:
            for _ in range(count):
                await durable_rate_limit_acquire(
                    key="k0", limit=LIMIT, window_ms=HOUR_MS, state_path=path
                )

        began = time.perf_counter()
        await asyncio.gather(*(some(n // TOGETHER) for _ in range(TOGETHER)))
        return time.perf_counter() - began


async def fill(path: Path, rows: int) -> None:
    wanted = Bucket("k0", LIMIT, window_ms=HOUR_MS)
    for _ in range(rows // 500):
        await asyncio.gather(
            *(durable_rate_limit_acquire(buckets=[wanted], state_path=path) for _ in range(500))
        )


async def pyrate(path: Path, n: int, full: int = 0) -> float:
    """Ask pyrate-limiter one after the other; seconds."""
    from pyrate_limiter import Limiter, Rate, SingleBucketFactory, SQLiteBucket

    rates = [Rate(LIMIT, HOUR_MS)]
    bucket = SQLiteBucket.init_from_file(rates, db_path=str(path), use_file_lock=True)
    now = time.time_ns() // 1_000_000
    bucket.conn.executemany("INSERT INTO rate_bucket VALUES ('k', ?)", [(now,)] * full)
    bucket.conn.commit()
    limiter = Limiter(SingleBucketFactory(bucket, schedule_leak=False))
    began = time.perf_counter()
    for _ in range(n):
        assert await limiter.try_acquire_async("k")
    took = time.perf_counter() - began
    limiter.close()
    return took


def asked_of_pyrate(n: int, full: int = 0) -> Callable[[], float]:
    def measured() -> float:
        where = home()
        atexit.register(shutil.rmtree, where, ignore_errors=True)  # its thread may still look
        return asyncio.run(pyrate(where / "x.sqlite", n, full)) / n * 1e6

    return measured


def timed_in(run: Callable[[Path], float], n: int) -> Callable[[], float]:
    """Give *run* a fresh file; microseconds per operation of the seconds that it tells."""

    def measured() -> float:
        where = home()
        try:
            return run(where / "x.sqlite") / n * 1e6
        finally:
            shutil.rmtree(where)

    return measured


def crowd(kind: str, each: int) -> Callable[[], float]:
    """Let four processes do it at once on one file; microseconds per operation of all of them."""

    def measured() -> float:
        where = home()
        try:
            path = str(where / "x.sqlite")
            if kind == "bare":
                bare(Path(path), 1)  # the file's mode cannot be changed by two at once
            workers = [
                subprocess.Popen(
                    [sys.executable, "-m", "bench.ratelimit", kind, path, str(each)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=Path(__file__).parent.parent,
                )
                for _ in range(CROWD)
            ]
            for worker in workers:
                assert worker.stdout is not None
                worker.stdout.readline()
            began = time.perf_counter()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(b"go\n")
                worker.stdin.flush()
            ended = [worker.wait() for worker in workers]
            took = time.perf_counter() - began
            assert not any(ended), f"not all of the crowd came through: {ended}"
            return took / (each * CROWD) * 1e6
        finally:
            shutil.rmtree(where)

    return measured


def in_turn(n: int, buckets: int = 1, full: int = 0) -> Callable[[], float]:
    return timed_in(lambda path: asyncio.run(acquire_in_turn(path, n, buckets, full)), n)


def together(n: int, full: int = 0) -> Callable[[], float]:
    return timed_in(lambda path: asyncio.run(acquire_together(path, n, full)), n)


def has_pyrate() -> bool:
    return all(importlib.util.find_spec(name) for name in ("pyrate_limiter", "filelock"))


def contests() -> Iterable[Contest]:
    floor = Contestant("bare loop", timed_in(lambda path: bare(path, MANY), MANY))
    yield Contest("acquire, 64 at once", (Contestant("harn", together(MANY)), floor))
    yield Contest(
        "acquire, 64 at once in each of 4 processes",
        (Contestant("harn", crowd("harn", 6400)), Contestant("bare loop", crowd("bare", 6400))),
    )
    alone = [Contestant("harn", in_turn(ONE)), Contestant("harn, 5 buckets", in_turn(ONE, 5))]
    if has_pyrate():
        alone.append(Contestant("pyrate-limiter", asked_of_pyrate(ONE)))
    yield Contest("acquire, one at a time", tuple(alone))
    full = [
        Contestant("harn, 10 live", together(MANY, 0)),
        Contestant("harn, 100,000 live", together(MANY, 100_000)),
    ]
    if has_pyrate():
        full += [
            Contestant("pyrate-limiter, 10 live", asked_of_pyrate(200, 10)),
            Contestant("pyrate-limiter, 100,000 live", asked_of_pyrate(200, 100_000)),
        ]
    yield Contest("acquire into a full window", tuple(full))


GOALS = [
    Goal("64 at once, against a bare loop", "acquire, 64 at once", "harn", "bare loop", 1.0),
    Goal(
        "64 at once in 4 processes, against 4 bare loops",
        "acquire, 64 at once in each of 4 processes",
        "harn",
        "bare loop",
        1.0,
    ),
    Goal("five buckets, against one", "acquire, one at a time", "harn, 5 buckets", "harn", 1.6),
    Goal(
        "100,000 live reservations, against 10",
        "acquire into a full window",
        "harn, 100,000 live",
        "harn, 10 live",
        1.2,
    ),
]
if has_pyrate():
    GOALS.append(
        Goal(
            "one at a time, against pyrate-limiter",
            "acquire, one at a time",
            "harn",
            "pyrate-limiter",
            0.5,
        )
    )


def worker(kind: str, path: str, n: int) -> None:
    """One process of a crowd: make ready, wait for the word, do it *n* times."""
    if kind == "bare":
        bare(Path(path), 1)
    else:
        asyncio.run(acquire_together(Path(path), TOGETHER))
    print("ready", flush=True)
    sys.stdin.readline()
    if kind == "bare":
        bare(Path(path), n)
    else:
        asyncio.run(acquire_together(Path(path), n))


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2], int(sys.argv[3]))
