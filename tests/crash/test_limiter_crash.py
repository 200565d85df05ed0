"""Eight processes, really killed, with clocks that jump: no window is ever above its limit."""

from __future__ import annotations

import asyncio
import bisect
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime
from harn.storage import Operation, Store, ask
from tests.crash.limiter_worker import RULES

WORKER = str(Path(__file__).with_name("limiter_worker.py"))
PROCESSES = 8


Event = dict[str, Any]
"""A line of a worker's ledger."""


class Crowd:
    """Workers that are started, killed and replaced."""

    def __init__(self, where: str, ledgers: Path, server_time: bool, seed: int) -> None:
        self.where, self.ledgers, self.chance = where, ledgers, random.Random(seed)
        self.time = "server" if server_time else "machine"
        self.started = 0
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        ledger = str(self.ledgers / f"{self.started}.jsonl")
        worker = subprocess.Popen(
            [sys.executable, WORKER, self.where, ledger, str(self.started), self.time],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self.ledgers,
        )
        self.workers.append(worker)
        return worker

    def go(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()

    def run(self, seconds: float, kills: int) -> None:
        for _ in range(PROCESSES):
            self.start()
        for worker in self.workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"ready\n"
        for worker in self.workers:
            self.go(worker)
        try:
            for _ in range(kills):
                time.sleep(seconds / (kills + 1))
                self.kill(self.chance.choice(self.workers))
                self.go(self.start())
            time.sleep(seconds / (kills + 1))
        finally:
            for worker in list(self.workers):
                self.kill(worker)

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        self.workers.remove(worker)
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait(30)
        for pipe in (worker.stdin, worker.stdout):
            if pipe is not None:
                pipe.close()

    def events(self) -> list[Event]:
        found = []
        for ledger in self.ledgers.glob("*.jsonl"):
            for line in ledger.read_bytes().split(b"\n"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass  # cut short by the kill
        return found


def windows_above_their_limit(events: list[Event]) -> list[str]:
    """Look at every admission and sum what counted then, settled where it was surely settled."""
    settling = {e["id"]: e for e in events if e["kind"] == "settling"}
    settled = {e["id"]: e for e in events if e["kind"] == "settled"}
    by_key: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event["kind"] == "admitted":
            for key, units in event["charged"].items():
                by_key[key].append((event["at"], units, event["id"]))
    wrong = []
    for key, rows in by_key.items():
        limit, window = RULES[key][0], RULES[key][1] * 1000
        rows.sort()
        instants = [at for at, *_ in rows]
        for number, (now, *_) in enumerate(rows):
            first = bisect.bisect_right(instants, now - window)
            used = sum(
                counted(units, name, key, now, settling, settled)
                for _, units, name in rows[first : number + 1]
            )
            if used > limit:
                wrong.append(f"{key} at {now}: {used} > {limit}")
    return wrong


def counted(
    units: int, name: str, key: str, now: int, settling: dict[str, Event], settled: dict[str, Event]
) -> int:
    asked = settling.get(name)
    if asked is None or asked["key"] != key or now < asked["at"]:
        return units
    corrected: int = min(asked["units"], RULES[key][0])
    done = settled.get(name)
    if done is not None and now > done["at"]:
        return corrected if done["landed"] else units
    return min(units, corrected)


async def rows_ever(where: str, key: str) -> int:
    """How often a bucket was charged, also by those who were killed before they could say so."""
    url = where if "://" in where else f"sqlite:///{where}"
    async with Runtime() as runtime:
        store = Store(runtime, url)

        def look() -> Operation[int]:
            rows = yield ask("limit_bucket", key=key)
            return int(rows[0][5]) - 1

        found = await store.run(look)
        await store.aclose()
        return found


def hammer(where: str, folder: Path, server_time: bool, seconds: float, kills: int) -> float:
    """Run the processes, check their ledgers, and return the share of what was possible."""
    crowd = Crowd(where, folder, server_time, seed=int(seconds * 1000) + kills)
    crowd.run(seconds, kills)
    events = crowd.events()

    assert windows_above_their_limit(events) == []
    admitted = [e for e in events if e["kind"] == "admitted"]
    assert len(admitted) > seconds * 20
    for event in admitted:  # the stamp is a moment of the call, so the windows above are real
        called, returned = event["span"]
        assert called <= event["at"] <= returned

    limit, window_ms = RULES["hot"]
    hot: list[int] = sorted(e["at"] for e in admitted if "hot" in e["charged"])
    whole = int((hot[-1] - hot[0]) / 1000 / window_ms)
    beyond = sum(at >= hot[0] + whole * window_ms * 1000 for at in hot)
    charged = asyncio.run(rows_ever(where, "hot"))
    return (charged - beyond) / (whole * limit)


def test_R1_G5_eight_processes_and_kills_on_a_file(tmp_path: Path) -> None:
    share = hammer(str(tmp_path / "limits.sqlite"), tmp_path, False, seconds=4, kills=4)

    assert share > 0.1  # some calls got through; the long run asks for how much


def test_R1_G5_eight_processes_and_kills_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    share = hammer(postgres_url, tmp_path, True, seconds=4, kills=4)

    assert share > 0.1


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_G5_a_minute_of_it_on_a_file(tmp_path: Path, at_least: Callable[[int], int]) -> None:
    share = hammer(str(tmp_path / "limits.sqlite"), tmp_path, False, at_least(6), at_least(2))

    assert share >= 0.97


@pytest.mark.stress
@pytest.mark.timeout(600)
def test_G5_a_minute_of_it_on_postgres(
    tmp_path: Path, postgres_url: str, at_least: Callable[[int], int]
) -> None:
    share = hammer(postgres_url, tmp_path, True, at_least(6), at_least(2))

    assert share >= 0.97


def test_R7_a_killed_process_holds_no_caller_up(tmp_path: Path) -> None:
    path = tmp_path / "limits.sqlite"
    script = (
        "import asyncio, sys, harn\n"
        "from harn.ratelimit.status import list_status\n"
        "async def main():\n"
        "    async with harn.Runtime() as runtime:\n"
        "        take = lambda: harn.durable_rate_limit_acquire("
        "key='k', limit=1, window_ms=400, state_path=sys.argv[1])\n"
        "        await take()\n"
        "        waiting = [asyncio.ensure_future(take()) for _ in range(50)]\n"
        "        while not (await list_status(runtime, 'sqlite:///' + sys.argv[1]))[0].waiting:\n"
        "            await asyncio.sleep(0.01)\n"
        "        print('waiting', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    victim = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, cwd=tmp_path
    )
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"waiting\n"

    os.kill(victim.pid, signal.SIGKILL)
    victim.wait(30)
    victim.stdout.close()

    from harn import durable_rate_limit_acquire

    async def next_one() -> int:
        async with Runtime():
            grant = await durable_rate_limit_acquire(
                key="k", limit=1, window_ms=400, state_path=path, timeout_ms="10s"
            )
            assert grant.ok
            return grant.waited_ms

    assert asyncio.run(next_one()) < 2000
