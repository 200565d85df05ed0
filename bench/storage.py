"""The event log against the bare engine below it.

The floor does what any program would have to: encode the payload as JSON, insert it with the same
columns and the same unique key, commit with the same durability. It knows its ids (it is alone),
takes a hundred records a transaction and has no event loop, no other process to think of.
Ours hands every record back to a task of its own, with its offset, once it is fsynced.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from bench.harness import Contest, Contestant, Goal, timed
from harn import Runtime
from harn.storage import draft

SUBJECT = "storage"
PAYLOAD = {"task": "review", "pr": 1984, "text": "x" * 100}
IN_FLIGHT = 1000
MANY = 20_000
FEW = 300
MILLION = 1_000_000

SCHEMA = """CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY, topic INTEGER NOT NULL,
    id INTEGER NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL, headers BLOB NOT NULL,
    at INTEGER NOT NULL, UNIQUE (topic, id))"""
INSERT = "INSERT INTO events (topic, id, kind, payload, headers, at) VALUES (?, ?, ?, ?, ?, ?)"


def home() -> Path:
    return Path(tempfile.mkdtemp(prefix="harn-bench-"))


def bare_apsw(batch: int) -> Callable[[int], None]:
    def run(n: int) -> None:
        where = home()
        connection = apsw.Connection(str(where / "x.sqlite"))
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute(SCHEMA)
        began = time.perf_counter()
        for start in range(0, n, batch):
            connection.execute("BEGIN IMMEDIATE")
            for id in range(start, start + batch):
                row = (1, id, "k", msgspec.json.encode(PAYLOAD), b"{}", time.time_ns() // 10**6)
                connection.execute(INSERT, row)
            connection.execute("COMMIT")
        run.took = time.perf_counter() - began  # type: ignore[attr-defined]
        connection.close()
        shutil.rmtree(where)

    return run


def without_opening(run: Callable[[int], None], n: int) -> Callable[[], float]:
    """Time what *run* says it took, so that opening and clearing up do not count."""

    def measured() -> float:
        run(n)
        return float(run.took) / n * 1e6  # type: ignore[attr-defined]

    return measured


def ours(url: Callable[[Path], str], in_flight: int) -> Callable[[int], None]:
    def run(n: int) -> None:
        where = home()

        async def main() -> float:
            async with Runtime(storage=url(where)) as runtime:
                log = runtime.event_log
                await log.emit("warm", "k", PAYLOAD)

                async def write(count: int) -> None:
                    for _ in range(count):
                        await log.emit("bench", "k", PAYLOAD)

                began = time.perf_counter()
                await asyncio.gather(*(write(n // in_flight) for _ in range(in_flight)))
                return time.perf_counter() - began

        run.took = asyncio.run(main())  # type: ignore[attr-defined]
        shutil.rmtree(where)

    return run


def sqlite_url(where: Path) -> str:
    return f"sqlite:///{where}/x.sqlite"


def file_url(where: Path) -> str:
    return f"file:///{where}/log"


def memory_record(n: int) -> None:
    async def main() -> None:
        async with Runtime() as runtime:
            log = runtime.event_log
            began = time.perf_counter()
            for _ in range(n):
                log.record("audit", "k", PAYLOAD)
            memory_record.took = time.perf_counter() - began  # type: ignore[attr-defined]

    asyncio.run(main())


class Postgres:
    """A real server of the tests' own kind, with fsync, for as long as this process lives."""

    dsn = ""

    def __init__(self) -> None:
        import atexit

        from tests.postgres import Server

        server: Any = Server(home(), fsync=True)
        server.make()
        server.start()
        Postgres.dsn = server.dsn
        atexit.register(shutil.rmtree, server.home, ignore_errors=True)
        atexit.register(server.stop, "immediate")


def bare_psycopg(batch: int) -> Callable[[int], None]:
    import psycopg

    def run(n: int) -> None:
        with psycopg.connect(Postgres.dsn, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS bare")
            connection.execute(
                "CREATE TABLE bare (topic bigint, id bigint, kind text, payload bytea,"
                " headers bytea, at bigint, PRIMARY KEY (topic, id))"
            )
            began = time.perf_counter()
            for start in range(0, n, batch):
                rows = [
                    (1, id, "k", msgspec.json.encode(PAYLOAD), b"{}", time.time_ns() // 10**6)
                    for id in range(start, start + batch)
                ]
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany("INSERT INTO bare VALUES (%s, %s, %s, %s, %s, %s)", rows)
            run.took = time.perf_counter() - began  # type: ignore[attr-defined]

    return run


def postgres_url(where: Path) -> str:
    return f"{Postgres.dsn}?schema=b_{os.urandom(4).hex()}"


class MillionEvents:
    """A SQLite log with a million records, made once."""

    where: Path | None = None

    @classmethod
    def url(cls) -> str:
        if cls.where is None:
            import atexit

            cls.where = home()
            atexit.register(shutil.rmtree, cls.where, ignore_errors=True)
            asyncio.run(cls._fill())
        return sqlite_url(cls.where)

    @classmethod
    async def _fill(cls) -> None:
        assert cls.where is not None
        async with Runtime(storage=sqlite_url(cls.where)) as runtime:
            batch = [draft("big", "k", PAYLOAD)] * 10_000
            for _ in range(MILLION // len(batch)):
                await runtime.event_log.append(batch)


READ = """
import asyncio, resource, sys
from harn import Runtime
async def main():
    async with Runtime(storage=sys.argv[1]) as runtime:
        count = 0
        async for event in runtime.event_log.stream("big"):
            count += 1
            if count == 20_000:
                early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if count == int(sys.argv[2]):
                break
        print(early, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
asyncio.run(main())
"""


def memory_of_reading(which: int) -> Callable[[], float]:
    def run() -> float:
        done = subprocess.run(
            [sys.executable, "-c", READ, MillionEvents.url(), str(MILLION)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stdout.split()[which]) / 1024

    return run


def open_log(url: Callable[[], str]) -> Callable[[], float]:
    def run() -> float:
        target = url()

        async def main() -> float:
            began = time.perf_counter()
            async with Runtime(storage=target) as runtime:
                await runtime.event_log.emit("after", "k", 1)
                await runtime.event_log.read("big", after=MILLION - 10)
                return (time.perf_counter() - began) * 1000

        return asyncio.run(main())

    return run


def stream_all(n: int) -> None:
    async def main() -> None:
        async with Runtime(storage=MillionEvents.url()) as runtime:
            async for event in runtime.event_log.stream("big"):
                if event.id >= n:
                    return

    asyncio.run(main())


def bare_read(n: int) -> None:
    connection = apsw.Connection(MillionEvents.url().removeprefix("sqlite:///"))
    rows = connection.execute(
        "SELECT id, kind, payload, headers, occurred_at_ms FROM events WHERE topic_id ="
        " (SELECT topic_id FROM topics WHERE name = 'big') ORDER BY id LIMIT ?",
        (n,),
    )
    for _id, _kind, payload, headers, _at in rows:
        msgspec.json.decode(payload)
        msgspec.json.decode(headers)
    connection.close()


_small: Path | None = None


def small_url() -> str:
    global _small
    if _small is None:
        _small = home()
    return sqlite_url(_small)


def other_process() -> float:
    """Milliseconds from an emit in another process to a subscriber here, SQLite."""
    return _latency(sqlite_url(home()))


def other_process_file() -> float:
    return _latency(file_url(home()))


def other_process_postgres() -> float:
    return _latency(postgres_url(home()))


EMIT = """
import asyncio, sys, time
from harn import Runtime
async def main():
    async with Runtime(storage=sys.argv[1]) as runtime:
        await runtime.event_log.emit("warm", "k", 0)
        for n in range(20):
            await asyncio.sleep(0.02)
            await runtime.event_log.emit("a", "k", time.monotonic())
asyncio.run(main())
"""


def _latency(url: str) -> float:
    async def main() -> float:
        async with Runtime(storage=url) as runtime:
            news = runtime.event_log.subscribe("a")
            await news.ready()
            process = subprocess.Popen([sys.executable, "-c", EMIT, url])
            waits: list[float] = []
            for _ in range(20):
                event = await anext(news)
                waits.append((time.monotonic() - event.payload) * 1000)
            process.wait()
            return sorted(waits)[18]

    return asyncio.run(main())


def contests() -> Iterable[Contest]:
    """Appends many and one at a time, reads, opening, latency across processes."""
    Postgres()
    yield Contest(
        "append with 1,000 in flight, fsynced",
        (
            Contestant("bare apsw, 100 a commit", without_opening(bare_apsw(100), MANY)),
            Contestant("harn sqlite", without_opening(ours(sqlite_url, IN_FLIGHT), MANY)),
            Contestant("harn file", without_opening(ours(file_url, IN_FLIGHT), MANY)),
        ),
    )
    yield Contest(
        "append one at a time, fsynced",
        (
            Contestant("bare apsw, 1 a commit", without_opening(bare_apsw(1), FEW)),
            Contestant("harn sqlite", without_opening(ours(sqlite_url, 1), FEW)),
            Contestant("harn file", without_opening(ours(file_url, 1), FEW)),
        ),
    )
    yield Contest(
        "append with 1,000 in flight, PostgreSQL",
        (
            Contestant("bare psycopg, 100 a commit", without_opening(bare_psycopg(100), MANY)),
            Contestant("harn postgresql", without_opening(ours(postgres_url, IN_FLIGHT), MANY)),
        ),
    )
    yield Contest(
        "append one at a time, PostgreSQL",
        (
            Contestant("bare psycopg, 1 a commit", without_opening(bare_psycopg(1), FEW)),
            Contestant("harn postgresql", without_opening(ours(postgres_url, 1), FEW)),
        ),
    )
    yield Contest(
        "record for an audit, in memory",
        (Contestant("harn memory", without_opening(memory_record, 50_000)),),
    )
    yield Contest(
        "read in order",
        (
            Contestant("bare apsw", timed(bare_read, 200_000)),
            Contestant("harn sqlite", timed(stream_all, 200_000)),
        ),
    )
    yield Contest(
        "memory while reading a million",
        (
            Contestant("after 20,000", memory_of_reading(0)),
            Contestant("after 1,000,000", memory_of_reading(1)),
        ),
        unit="MB",
        rounds=2,
        warm_up=False,
    )
    yield Contest(
        "open, emit once and read the end",
        (
            Contestant("a new log", open_log(small_url)),
            Contestant("a million records", open_log(MillionEvents.url)),
        ),
        unit="ms",
    )
    yield Contest(
        "another process's emit reaches a subscriber (95th of 100)",
        (
            Contestant("sqlite", other_process),
            Contestant("file", other_process_file),
            Contestant("postgresql", other_process_postgres),
        ),
        unit="ms",
    )


GOALS = [
    Goal(
        "SQLite: throughput at least 0.7x of the bare loop",
        "append with 1,000 in flight, fsynced",
        "harn sqlite",
        "bare apsw, 100 a commit",
        at_most=1 / 0.7,
        why="each record has a caller of its own, a future and two turns of the event loop",
    ),
    Goal(
        "SQLite: one at a time at most 1.6x of a single commit",
        "append one at a time, fsynced",
        "harn sqlite",
        "bare apsw, 1 a commit",
        at_most=1.6,
    ),
    Goal(
        "PostgreSQL: throughput at least 0.7x of the bare loop",
        "append with 1,000 in flight, PostgreSQL",
        "harn postgresql",
        "bare psycopg, 100 a commit",
        at_most=1 / 0.7,
    ),
    Goal(
        "reading a million streams in constant memory",
        "memory while reading a million",
        "after 1,000,000",
        "after 20,000",
        at_most=1.1,
    ),
]
