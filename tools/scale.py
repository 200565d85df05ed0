"""Measure how a queue's cost grows on this machine: the tables of docs/design/scale.md.

    python -m tools.scale                              # all curves, on SQLite and PostgreSQL
    python -m tools.scale processes --engines postgres
    python -m tools.scale settled --most 10000000      # needs 11 GB, and minutes

*processes*: consumers that share one queue, or have a queue each. *queues*: one process that drains
many queues, and then waits for work of all of them. *keys*: tenants with waiting jobs. *settled*:
jobs in the store that are done; they are put there by SQL. Jobs do nothing; a hundred are in
flight. The unit is processor time, which hardly depends on what else the machine does. PostgreSQL
is a server of its own with `fsync=on`, whose processor time and journal are counted, too. Each
point is measured once, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.jobs import COPIES, ROWS
from bench.peers import Postgres
from harn import NewJob, Runtime, SchedulerPolicy, drain, worker_queue

FAIR = SchedulerPolicy(strategy="drr")
PROCESSES = (1, 2, 4, 8)
QUEUES = (1, 10, 100, 1_000)
KEYS = (10, 100, 1_000, 10_000, 100_000)
SETTLED = (10_000, 100_000, 1_000_000, 10_000_000)
JOBS, IN_FLIGHT, SINGLES, IDLE_SECONDS = 20_000, 100, 200, 10
Row = dict[str, str]


async def noop(job: Any) -> None:
    """Do nothing."""


async def fill(queue: str, n: int, keys: int = 10) -> None:
    jobs = [NewJob(i, tenant_id=f"t{i % keys}") for i in range(n)]
    for start in range(0, n, 5_000):
        await worker_queue(queue, FAIR).enqueue_many(jobs[start : start + 5_000])


# -- what a process of a run does ------------------------------------------------------------------


async def consume(url: str, queue: str) -> dict[str, float]:
    """Drain a queue as soon as a line arrives; tell the jobs and the processor time."""
    async with Runtime(storage=url):
        await worker_queue(queue, FAIR).summary()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.process_time()
        report = await drain(queue, noop, concurrency=IN_FLIGHT, policy=FAIR)
        return {"jobs": report.acked, "used": time.process_time() - began}


async def serve_many(url: str, queues: int) -> dict[str, float]:
    """Drain *queues* at the same time, then wait for their work, as `harn worker` does."""
    async with Runtime(storage=url):
        names = [f"q{i}" for i in range(queues)]
        for name in names:
            await fill(name, JOBS // queues)
        cost = time.process_time()
        await asyncio.gather(
            *(drain(n, noop, consumer_id="scale", concurrency=10, policy=FAIR) for n in names)
        )
        used = time.process_time() - cost
        waiting = [
            asyncio.ensure_future(
                drain(n, noop, consumer_id="scale", stop_when_empty=False, policy=FAIR)
            )
            for n in names
        ]
        await asyncio.sleep(5)  # until all have looked once, and renewals are spread
        before, cost = transactions(url), time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        idle = (time.process_time() - cost) / IDLE_SECONDS
        asked = (transactions(url) - before) / IDLE_SECONDS
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        return {"used": used, "idle": idle, "asked": asked}


def transactions(url: str) -> int:
    """Return how many transactions the store's database has seen; 0 where it is a file."""
    if not url.startswith("postgresql"):
        return 0
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        [(seen,)] = db.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database"
            " WHERE datname = current_database()"
        ).fetchall()
    return int(seen)


async def among_keys(url: str, keys: int) -> dict[str, float]:
    """Claim and ack one by one, then drain 5,000, among so many tenants with waiting jobs."""
    async with Runtime(storage=url):
        began = time.process_time()
        jobs = max(JOBS, 2 * keys)
        await fill("q", jobs, keys)
        entered = (time.process_time() - began) / jobs
        single = await one_by_one()
        began = time.process_time()
        left = 5_000

        async def until_enough(job: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                draining.cancel()

        draining = asyncio.ensure_future(
            drain("q", until_enough, concurrency=IN_FLIGHT, policy=FAIR)
        )
        await asyncio.wait([draining])
        return {"enter": entered, "single": single, "drain": (time.process_time() - began) / 5_000}


async def one_by_one() -> float:
    queue = worker_queue("q", FAIR)
    for n in range(SINGLES + 10):
        if n == 10:
            began = time.process_time()
        claim = await queue.claim_next("w")
        assert claim is not None
        await claim.ack()
    return (time.process_time() - began) / SINGLES


async def among_settled(url: str, settled: int) -> dict[str, float]:
    """Use a store that holds so many settled jobs."""
    began = time.perf_counter()
    async with Runtime(storage=url):
        queue = worker_queue("q", FAIR)
        await queue.summary()
        opened = time.perf_counter() - began
        began = time.process_time()
        await fill("q", 5_000)
        entered = (time.process_time() - began) / 5_000
        began = time.process_time()
        report = await drain("q", noop, concurrency=IN_FLIGHT, policy=FAIR)
        drained = (time.process_time() - began) / report.acked
        began = time.process_time()
        for n in range(200):
            assert await queue.job(1 + n * (settled // 200))
        read = (time.process_time() - began) / 200
        began = time.process_time()
        for _ in range(50):
            assert await queue.jobs(status="dead", limit=20)
        return {
            "open": opened,
            "enter": entered,
            "drain": drained,
            "job": read,
            "page": (time.process_time() - began) / 50,
        }


ROLES: dict[str, Callable[..., Any]] = {
    "consume": consume,
    "serve_many": serve_many,
    "among_keys": among_keys,
    "among_settled": among_settled,
}


# -- stores ----------------------------------------------------------------------------------------


@contextmanager
def store(engine: str) -> Iterator[str]:
    """Make an empty store; yield its URL."""
    if engine == "postgres":
        with Postgres.database() as url:
            yield url
        return
    home = Path(tempfile.mkdtemp(prefix="harn-scale-"))
    try:
        yield f"sqlite:///{home}/q.sqlite"
    finally:
        shutil.rmtree(home, ignore_errors=True)


class ServerCost:
    """The processor time and the bytes of journal that the PostgreSQL server used since."""

    def __init__(self, engine: str) -> None:
        self.is_used = engine == "postgres"
        self.before = self.now()

    def now(self) -> tuple[float, int]:
        if not self.is_used:
            return 0.0, 0
        with psycopg.connect(Postgres.dsn(), autocommit=True) as db:
            [(wal,)] = db.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
        return server_seconds(), int(wal)

    def since(self) -> tuple[float, int]:
        now = self.now()
        return now[0] - self.before[0], now[1] - self.before[1]


def server_seconds() -> float:
    """Return the processor time of the server: its own, of its children, and of those gone."""
    data = Path(Postgres._server.home) / "data" / "postmaster.pid"
    postmaster = int(data.read_text().split()[0])
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == postmaster:
            total += int(fields[11]) + int(fields[12])
        elif stat.parent.name == str(postmaster):
            total += sum(int(field) for field in fields[11:15])
    return total / ticks


def command(role: str, *args: object) -> list[str]:
    return [sys.executable, "-m", "tools.scale", "--role", role, *map(str, args)]


def run(role: str, *args: object) -> dict[str, float]:
    done = subprocess.run(  # noqa: S603 - this module
        command(role, *args), stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


# -- the curves ------------------------------------------------------------------------------------


def by_processes(engine: str, most: int) -> Iterator[Row]:
    for count in PROCESSES:
        row: Row = {"processes": str(count)}
        for own, title in ((False, "one queue"), (True, "a queue each")):
            names = [f"q{i if own else 0}" for i in range(count)]
            with store(engine) as url:
                asyncio.run(prepare(url, names))
                took, used, server = race(engine, url, names)
            row[f"{title}: jobs/s"] = f"{JOBS / took:,.0f}"
            if own:
                continue
            row["µs of the clients"] = micro(used / JOBS)
            if engine == "postgres":
                row["of the server"] = micro(server[0] / JOBS)
                row["bytes of its journal"] = f"{server[1] / JOBS:,.0f}"
        yield row


async def prepare(url: str, names: list[str]) -> None:
    async with Runtime(storage=url):
        for name in sorted(set(names)):
            await fill(name, JOBS // len(set(names)))


def race(engine: str, url: str, names: list[str]) -> tuple[float, float, tuple[float, int]]:
    """Drain *names* with a process for each; the time, the clients' and the server's cost."""
    workers = [
        subprocess.Popen(  # noqa: S603 - this module
            command("consume", url, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    server = ServerCost(engine)
    began = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [json.loads(worker.communicate()[0]) for worker in workers]
    took = time.perf_counter() - began
    assert sum(answer["jobs"] for answer in answers) == JOBS
    return took, sum(answer["used"] for answer in answers), server.since()


def by_queues(engine: str, most: int) -> Iterator[Row]:
    for queues in QUEUES:
        with store(engine) as url:
            server = ServerCost(engine)
            found = run("serve_many", url, queues)
            used = server.since()
        row = {"queues": f"{queues:,}", "drain, µs a job": micro(found["used"] / JOBS)}
        row["all idle, % of a core"] = f"{found['idle'] * 100:.2f}"
        if engine == "postgres":
            row["transactions a second"] = f"{found['asked']:,.0f}"
            row["of the server, µs a job, enqueue included"] = micro(used[0] / JOBS)
        yield row


def by_keys(engine: str, most: int) -> Iterator[Row]:
    for keys in KEYS:
        with store(engine) as url:
            found = run("among_keys", url, keys)
        yield {
            "keys": f"{keys:,}",
            "enqueue by thousands": micro(found["enter"]),
            "claim and ack, one by one": micro(found["single"]),
            "drain": micro(found["drain"]),
        }


def by_settled(engine: str, most: int) -> Iterator[Row]:
    for settled in SETTLED:
        if settled > most:
            return
        with store(engine) as url:
            began = time.perf_counter()
            asyncio.run(prepare_settled(url))
            size = settle(engine, url, settled)
            print(f"{settled:,} put in: {time.perf_counter() - began:.0f} s", file=sys.stderr)
            found = run("among_settled", url, settled)
        yield {
            "settled": f"{settled:,}",
            "open, ms": f"{found['open'] * 1e3:,.0f}",
            "enqueue by thousands": micro(found["enter"]),
            "drain": micro(found["drain"]),
            "`queue.job`": micro(found["job"]),
            "a page of 20": micro(found["page"]),
            "on disk, MB": f"{size / 1e6:,.0f}",
        }


async def prepare_settled(url: str) -> None:
    async with Runtime(storage=url):
        await worker_queue("q", FAIR).enqueue({"pr": 1984}, tenant_id="t1")
        await drain("q", noop, policy=FAIR)


def settle(engine: str, url: str, size: int) -> int:
    """Put *size* settled jobs into the store, by SQL; return how many bytes it takes."""
    topics = ("worker.q", "worker.q.responses")
    if engine == "sqlite":
        import apsw

        path = url.removeprefix("sqlite:///")
        with apsw.Connection(path) as db:
            for topic in topics:
                db.execute(COPIES, (size, topic))
                db.execute("UPDATE topics SET head = ? WHERE name = ?", (size, topic))
            db.execute(ALL_SETTLED, (size,))
        return Path(path).stat().st_size
    with psycopg.connect(url, autocommit=True) as server:
        # The parameters of the bench's text are numbered for SQLite; a series is quicker here.
        for topic in topics:
            server.execute(POSTGRES_COPIES, (size, topic))
            server.execute("UPDATE harn.topics SET head = %s WHERE name = %s", (size, topic))
        server.execute(POSTGRES_ROWS, (size,))
        server.execute("VACUUM ANALYZE")
        [(bytes,)] = server.execute("SELECT pg_database_size(current_database())").fetchall()
        return int(bytes)


ALL_SETTLED = ROWS.replace("?1 - 300", "?1").replace("?1 - 100", "?1")
POSTGRES_COPIES = """
INSERT INTO harn.events (topic_id, id, kind, payload, headers, occurred_at_ms)
SELECT e.topic_id, n, e.kind, e.payload, e.headers, e.occurred_at_ms
FROM harn.events e, generate_series(2, %s) AS n
WHERE e.id = 1 AND e.topic_id = (SELECT topic_id FROM harn.topics WHERE name = %s)
"""
POSTGRES_ROWS = """
INSERT INTO harn.jobs (queue_id, id, key, priority, state, enqueued_at, attempts, max_attempts,
    settled_at, tenant_id, response)
SELECT j.queue_id, n, 't' || (n %% 10), 1,
    CASE n %% 20 WHEN 0 THEN 6 WHEN 1 THEN 7 ELSE 4 END,
    j.enqueued_at, 1, 5, j.settled_at, 't' || (n %% 10), n
FROM harn.jobs j, generate_series(2, %s) AS n WHERE j.id = 1
"""

CURVES: dict[str, Callable[[str, int], Iterator[Row]]] = {
    "processes": by_processes,
    "queues": by_queues,
    "keys": by_keys,
    "settled": by_settled,
}


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Return a Markdown table of *rows*, a line at a time."""
    for place, row in enumerate(rows):
        if place == 0:
            yield "| " + " | ".join(row) + " |"
            yield "|---:" * len(row) + "|"
        yield "| " + " | ".join(row.values()) + " |"


def measure(curve: str, engine: str, most: int) -> None:
    print(f"\n{curve}, {engine}\n", flush=True)
    for line in table(CURVES[curve](engine, most)):
        print(line, flush=True)


def main(argv: list[str]) -> None:
    """Measure the curves that are named, or be a process of such a run."""
    if argv[:1] == ["--role"]:
        role, url, what = argv[1:]
        print(json.dumps(asyncio.run(ROLES[role](url, int(what) if what.isdigit() else what))))
        return
    parser = argparse.ArgumentParser(prog="python -m tools.scale", description=__doc__)
    parser.add_argument("curves", nargs="*", help=f"of {', '.join(CURVES)}; all without")
    parser.add_argument("--engines", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--most", type=int, default=1_000_000, help="settled jobs at most")
    asked = parser.parse_args(argv)
    for curve in asked.curves or CURVES:
        for engine in asked.engines:
            measure(curve, engine, asked.most)


if __name__ == "__main__":
    main(sys.argv[1:])
