"""Run a small service for a long time, kill parts of it, and see that nothing is lost or grows.

    make soak                                  # an hour for each of sqlite and postgres
    make soak MINUTES=10 ENGINES=sqlite

Two producers and three consumers work on one queue at a steady pace, under a rate limit shared by
all; settled jobs are trimmed after a minute. Every twenty seconds one of them is killed and
replaced; one producer and one consumer are never killed, and their memory and open files are
watched. At the end what is left is worked off, and the run fails if

- a job that was acknowledged was never handled, or is not counted as acked;
- `harn log verify` finds anything;
- a watched process holds a half more memory, and 20 MB, than after the first fifth of the time, or
  more open files.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import harn
from harn import Job, drain, durable_rate_limit_acquire, worker_queue

KILL_EVERY, LOOK_EVERY = 20.0, 5.0
ROLES = ("produce", "produce", "consume", "consume", "consume")
WATCHED = (0, 2)
"""The places in ROLES of the two processes that are never killed."""


async def produce(ledger: Path) -> None:
    """Enqueue forty jobs a second, and note each that was acknowledged."""
    queue, number = worker_queue("soak"), 0
    with open(ledger, "a", buffering=1) as notes:  # noqa: ASYNC230 - a line of a local file
        while True:
            number += 1
            key = f"{os.getpid()}-{time.time_ns()}-{number}"
            await queue.enqueue({"key": key}, tenant_id=f"t{number % 5}", dedupe_key=key)
            notes.write(f"{key}\n")
            await asyncio.sleep(0.025)


async def consume(ledger: Path) -> None:
    """Handle jobs within a limit of 200 a second, and note each that was handled."""
    with open(ledger, "a", buffering=1) as notes:  # noqa: ASYNC230

        async def handle(job: Job) -> str:
            await durable_rate_limit_acquire(key="soak", limit=200, window_ms=1000)
            notes.write(f"{job.payload['key']}\n")
            return "done"

        await drain("soak", handle, concurrency=8, stop_when_empty=False)


class Stage:
    """The processes of a run, their ledgers, and what was seen of the watched ones."""

    def __init__(self, url: str, home: Path, seed: int) -> None:
        self.url, self.home = url, home
        self.random = random.Random(seed)  # noqa: S311
        self.kills, self.started = 0, 0
        self.processes = [self.start(role) for role in ROLES]
        self.seen: dict[int, list[tuple[int, int]]] = {place: [] for place in WATCHED}

    def start(self, role: str) -> subprocess.Popen[bytes]:
        self.started += 1
        ledger = self.home / f"{role}-{self.started}"
        command = [sys.executable, "-m", "tools.soak", "--role", role, self.url, str(ledger)]
        environ = {**os.environ, "HARN_KEEP_SETTLED": "1m", "HARN_STATE_DIR": f"{self.home}/state"}
        return subprocess.Popen(command, env=environ)  # noqa: S603 - this module

    def kill_one(self) -> None:
        place = self.random.choice([n for n in range(len(ROLES)) if n not in WATCHED])
        self.processes[place].kill()
        self.processes[place].wait()
        self.kills += 1
        self.processes[place] = self.start(ROLES[place])

    def look(self) -> None:
        for place in WATCHED:
            process = self.processes[place]
            if process.poll() is not None:
                raise SystemExit(f"the {ROLES[place]}r ended by itself with {process.returncode}")
            self.seen[place].append((memory(process.pid), open_files(process.pid)))

    def stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=60)

    def keys(self, role: str) -> set[str]:
        files = self.home.glob(f"{role}-*")
        return {line for path in files for line in path.read_text().splitlines()}


def memory(pid: int) -> int:
    """Return the resident memory of *pid* in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def open_files(pid: int) -> int:
    """Return how many files and connections *pid* holds."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def run(engine: str, url: str, home: Path, minutes: float, seed: int) -> list[str]:
    """Run one soak; return what went wrong."""
    stage, begun, killed = Stage(url, home, seed), time.monotonic(), time.monotonic()
    try:
        while time.monotonic() < begun + minutes * 60:
            time.sleep(LOOK_EVERY)
            stage.look()
            if time.monotonic() > killed + KILL_EVERY:
                killed = time.monotonic()
                stage.kill_one()
    finally:
        stage.stop()
    wrong = [*lost(stage), *grown(stage)]
    print(summary(engine, stage, minutes), *wrong, sep="\n", flush=True)
    return wrong


def lost(stage: Stage) -> Iterator[str]:
    """Work off what is left; compare the ledgers with the queue, the log with its indexes."""
    counts = harn.run(finish, stage.home / "consume-last", storage=stage.url)
    acknowledged, handled = stage.keys("produce"), stage.keys("consume")
    if missing := acknowledged - handled:
        yield f"{len(missing)} acknowledged jobs were never handled, such as {min(missing)}"
    if counts.acked < len(acknowledged) or counts.ready or counts.in_flight or counts.dead:
        yield f"{len(acknowledged)} jobs were acknowledged, the queue says {counts}"
    command = [sys.executable, "-m", "harn", "log", "verify", "--storage", stage.url]
    checked = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if checked.returncode:
        yield checked.stdout + checked.stderr


async def finish(ledger: Path) -> harn.QueueSummary:
    """Handle every job that is left."""
    with open(ledger, "a") as notes:  # noqa: ASYNC230
        while True:
            report = await drain("soak", lambda job: notes.write(f"{job.payload['key']}\n"))
            if not (report.summary.ready or report.summary.in_flight):
                return report.summary
            await harn.sleep("500ms")


def grown(stage: Stage) -> Iterator[str]:
    """Compare the watched processes' memory and files with those after a fifth of the time."""
    for place, seen in stage.seen.items():
        (early, files), (late, more) = seen[len(seen) // 5], seen[-1]
        if late > early * 1.5 + 20_000:
            yield f"the {ROLES[place]}r grew from {early} to {late} KiB"
        if more > files + 10:
            yield f"the {ROLES[place]}r held {files} files and connections, then {more}"


def summary(engine: str, stage: Stage, minutes: float) -> str:
    """Return one row for the table of docs/guarantees.md."""
    jobs = len(stage.keys("produce"))
    held = ", ".join(
        f"{ROLES[place]}r {seen[len(seen) // 5][0] // 1024} to {seen[-1][0] // 1024} MB"
        for place, seen in stage.seen.items()
    )
    return f"| {engine} | {minutes:g} minutes | {jobs:,} jobs | {stage.kills} kills | {held} |"


@contextmanager
def store(engine: str, home: Path) -> Iterator[str]:
    """Make a store of *engine*; a PostgreSQL server lives as long as the block."""
    if engine != "postgres":
        yield f"{engine}:///{home}/soak"
        return
    from tests.postgres import Server

    server = Server(home / "server", fsync=True)
    home.chmod(0o755)  # the server runs as another user
    server.make()
    server.start()
    try:
        yield server.dsn
    finally:
        server.stop("immediate")


def main() -> int:
    """Soak each engine that was named, or be one of the processes."""
    parser = argparse.ArgumentParser(description="make soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--role", choices=sorted(set(ROLES)))
    parser.add_argument("words", nargs="*", default=["sqlite", "postgres"])
    given = parser.parse_args()
    if given.role:
        url, ledger = given.words
        harn.run({"produce": produce, "consume": consume}[given.role], Path(ledger), storage=url)
        return 0
    wrong: list[str] = []
    for engine in given.words:
        with tempfile.TemporaryDirectory(prefix="harn-soak-") as folder:
            home = Path(folder)
            with store(engine, home) as url:
                wrong += run(engine, url, home, given.minutes, given.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
