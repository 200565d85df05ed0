"""Producers and consumers really killed: nothing acknowledged is lost, nothing acked twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Job, Runtime, drain, event_log_read, worker_queue
from harn.storage import Store

WORKER = Path(__file__).with_name("queue_worker.py")
TTL = "1s"


class Stage:
    """The processes of one run, and their ledgers."""

    def __init__(self, home: Path, url: str, seed: int) -> None:
        self.home = home
        self.url = url
        self.random = random.Random(seed)
        self.count = 0
        self.kills = 0

    def start(self, role: str, *args: object, **options: Any) -> subprocess.Popen[bytes]:
        self.count += 1
        ledger = self.home / f"{role}-{self.count}.jsonl"
        command = [sys.executable, str(WORKER), role, self.url, str(ledger), *map(str, args)]
        with open(self.home / f"{role}-{self.count}.err", "wb") as log:
            return subprocess.Popen(command, stderr=log, stdout=log, **options)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self.kills += 1

    def ledger(self, role: str) -> list[dict[str, Any]]:
        lines = []
        for path in sorted(self.home.glob(f"{role}-*.jsonl")):
            for line in path.read_bytes().split(b"\n"):
                if line:
                    lines.append(json.loads(line))
        return lines


async def run_with_kills(stage: Stage, jobs: int, kills: int, batch: int) -> None:
    """Run two producers and four consumers, killing and restarting them at random."""
    producers = {
        name: stage.start("produce", name, jobs // 2, batch) for name in ("north", "south")
    }
    consumers = [stage.start("consume", TTL, 4) for _ in range(4)]
    try:
        while stage.kills < kills or any(p.poll() is None for p in producers.values()):
            await asyncio.sleep(stage.random.uniform(0.02, 0.25))
            for name, process in list(producers.items()):
                if process.poll() not in (None, 0):
                    producers[name] = stage.start("produce", name, jobs // 2, batch)
            if stage.kills >= kills:
                continue
            running = [p for p in producers.values() if p.poll() is None]
            victim = stage.random.choice([*running, *consumers, *consumers])
            stage.kill(victim)
            if victim in consumers:
                consumers[consumers.index(victim)] = stage.start("consume", TTL, 4)
    finally:
        for process in [*producers.values(), *consumers]:
            if process.poll() is None:
                process.kill()
                process.wait()


async def finish(url: str) -> dict[str, Any]:
    """Drain what is left and read what the log says."""
    async with Runtime(storage=url) as runtime:
        queue = worker_queue("q")

        async def handler(job: Job) -> Any:
            return job.payload["key"]

        while True:
            report = await drain("q", handler, concurrency=50, claim_ttl="5s")
            summary = report.summary
            if not (summary.ready or summary.in_flight or summary.scheduled):
                break
            await harn.sleep("200ms")
        found = {
            "summary": await queue.summary(),
            "jobs": await event_log_read("worker.q"),
            "claims": await event_log_read("worker.q.claims"),
            "responses": await event_log_read("worker.q.responses"),
            "damage": await runtime.service(Store).check(),
        }
    return found


def check(stage: Stage, found: dict[str, Any]) -> None:
    jobs = {event.id: event.payload["event"]["key"] for event in found["jobs"]}
    acknowledged = [
        pair
        for line in stage.ledger("produce")
        for pair in zip(line["jobs"], line["keys"], strict=True)
    ]
    for job_id, key in acknowledged:
        assert jobs[job_id] == key, "an acknowledged job was lost"
    assert len(set(jobs.values())) == len(jobs), "a dedupe key was enqueued twice"

    acks = Counter(e.payload["job_event_id"] for e in found["claims"] if e.kind == "job_acked")
    assert acks == Counter(dict.fromkeys(jobs, 1)), "acks per job"
    responded = Counter(
        e.payload["job_event_id"] for e in found["responses"] if e.payload["error"] is None
    )
    assert responded == acks, "ack and response go together"
    assert found["summary"].acked == len(jobs)
    assert found["damage"] == []
    check_claims(found["claims"])


def check_claims(claims: list[Any]) -> None:
    """C3: a claim begins only after the last one has expired or was given back."""
    until: dict[int, int] = defaultdict(int)
    for event in claims:
        record = event.payload
        job = record.get("job_event_id")
        if event.kind == "job_claimed":
            assert record["claimed_at_ms"] >= until[job], (job, record)
            until[job] = record["expires_at_ms"]
        elif event.kind == "claim_renewed":
            until[job] = record["expires_at_ms"]
        elif event.kind == "job_released":
            until[job] = 0


async def test_G1_nothing_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, f"sqlite:///{tmp_path}/q.sqlite", seed=7)

    await run_with_kills(stage, jobs=400, kills=12, batch=10)
    found = await finish(stage.url)

    check(stage, found)
    assert stage.kills == 12


@pytest.mark.timeout(150)
async def test_G1_nothing_is_lost_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    stage = Stage(tmp_path, postgres_url, seed=11)

    await run_with_kills(stage, jobs=300, kills=8, batch=10)
    found = await finish(stage.url)

    check(stage, found)


@pytest.mark.stress
@pytest.mark.timeout(3000)
async def test_G1_hundreds_of_kills(tmp_path: Path, at_least: Callable[[int], int]) -> None:
    stage = Stage(tmp_path, f"sqlite:///{tmp_path}/q.sqlite", seed=1)

    await run_with_kills(stage, jobs=at_least(2000), kills=at_least(100), batch=20)
    found = await finish(stage.url)

    check(stage, found)


@pytest.mark.stress
@pytest.mark.timeout(3000)
async def test_G1_hundreds_of_kills_and_server_restarts_on_postgresql(
    tmp_path: Path, at_least: Callable[[int], int]
) -> None:
    import tempfile

    from tests.postgres import Server

    server = Server(Path(tempfile.mkdtemp(prefix="harn-pg-")), fsync=True)
    server.make()
    server.start()
    stage = Stage(tmp_path, f"{server.dsn}?schema=crash", seed=2)
    stop = asyncio.Event()

    async def crash_the_server() -> None:
        while not stop.is_set():
            await asyncio.sleep(stage.random.uniform(2, 5))
            await asyncio.to_thread(server.restart_at_once)

    crashing = asyncio.ensure_future(crash_the_server())
    try:
        await run_with_kills(stage, jobs=at_least(2000), kills=at_least(100), batch=20)
        stop.set()
        await crashing
        found = await finish(stage.url)
    finally:
        server.stop("immediate")

    check(stage, found)


async def zombies(tmp_path: Path, url: str, count: int) -> None:
    """G3: consumers stopped beyond their claims' life and woken again may settle nothing."""
    stage = Stage(tmp_path, url, seed=3)
    async with Runtime(storage=url):
        await worker_queue("q").enqueue_many(range(count))
    frozen = [stage.start("freeze", "300ms", stdin=subprocess.PIPE) for _ in range(count)]
    try:
        while len(stage.ledger("freeze")) < count:
            await asyncio.sleep(0.02)
        for process in frozen:
            process.send_signal(signal.SIGSTOP)
        async with Runtime(storage=url):
            taken = 0
            began = time.monotonic()
            while taken < count and time.monotonic() - began < 20:
                report = await drain("q", lambda job: "mine", concurrency=8)
                taken += report.acked
                await harn.sleep("50ms")
        assert taken == count
        for process in frozen:
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write(b"\n")
            process.stdin.close()
        for process in frozen:
            process.wait(timeout=20)
    finally:
        for process in frozen:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
    woken = [line["acked"] for line in stage.ledger("freeze") if line["phase"] == "woken"]
    assert woken == ["lost"] * count
    async with Runtime(storage=url):
        outcomes = [e.payload["outcome"] for e in await event_log_read("worker.q.responses")]
        assert outcomes == ["mine"] * count


async def test_G3_a_zombie_cannot_ack(tmp_path: Path) -> None:
    await zombies(tmp_path, f"sqlite:///{tmp_path}/q.sqlite", 4)


@pytest.mark.stress
@pytest.mark.timeout(3000)
async def test_G3_a_hundred_zombies(tmp_path: Path, at_least: Callable[[int], int]) -> None:
    for number in range(at_least(1)):
        home = tmp_path / str(number)
        home.mkdir()
        await zombies(home, f"sqlite:///{home}/q.sqlite", 10)


async def test_G4_an_orphan_is_taken_over_when_its_claim_expires(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.sqlite"
    stage = Stage(tmp_path, url, seed=5)
    async with Runtime(storage=url):
        queue = worker_queue("q")
        await queue.enqueue({"key": "only"})
        doomed = stage.start("freeze", "1s", stdin=subprocess.PIPE)
        while not stage.ledger("freeze"):
            await asyncio.sleep(0.01)
        stage.kill(doomed)
        claims = await event_log_read("worker.q.claims")

        while (claim := await queue.claim_next("heir")) is None:
            await harn.sleep("20ms")

    late = claim.claimed_at_ms - claims[0].payload["expires_at_ms"]
    assert 0 <= late <= 1000
    assert claim.attempt == 2
