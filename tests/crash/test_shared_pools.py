"""Real processes share a pool, and some of them are killed or paused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from harn import PoolSnapshot, Runtime, backpressure_queue, fair_round_robin, pool_create
from harn.storage import Store
from harn.storage.log import compare

PROCESS = Path(__file__).with_name("shared_pool_process.py")
CAP = 3
PATIENCE = 60.0


class Line(NamedTuple):
    """One line of the ledger."""

    what: str
    name: str
    pid: int
    at: float


class Ledger:
    """What the processes have noted, outside the store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pauses: list[tuple[int, float]] = []
        """Processes that were paused, and when: what they ran then counts until that moment."""

    @property
    def lines(self) -> list[Line]:
        if not self.path.exists():
            return []
        whole = [text.split() for text in self.path.read_text().splitlines()]
        return [Line(what, name, int(pid), float(at)) for what, name, pid, at in whole]

    def _held_until(self, line: Line, begun: float) -> float:
        paused = [at for pid, at in self.pauses if pid == line.pid and begun < at < line.at]
        return min([line.at, *paused])

    def names(self, what: str) -> list[str]:
        return [line.name for line in self.lines if line.what == what]

    def count(self, what: str, pids: list[int]) -> int:
        """Return how many lines of this sort these processes have written."""
        return sum(line.what == what and line.pid in pids for line in self.lines)

    def most_at_once(self, ended: dict[int, float]) -> int:
        """Return how many tasks ran at one instant, in processes that were alive."""
        edges: list[tuple[float, int]] = []
        running: dict[tuple[str, int], float] = {}
        for line in self.lines:
            if line.what == "begin":
                running[line.name, line.pid] = line.at
            elif line.what == "end":
                begun = running.pop((line.name, line.pid))
                edges += [(begun, 1), (self._held_until(line, begun), -1)]
        for (_, pid), at in running.items():
            edges += [(at, 1), (ended.get(pid, float("inf")), -1)]
        most = now = 0
        for _, change in sorted(edges):
            now += change
            most = max(most, now)
        return most


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LEASE_MS", "2000")
    monkeypatch.setenv("HARN_LEASE_RENEW_MS", "400")


@contextmanager
def started(
    url: str, ledger: Ledger, count: int, processes: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, str(PROCESS), url, str(ledger.path), str(count), str(CAP)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        yield children
    finally:
        for child in children:
            child.kill()
            child.communicate()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def all_ended(url: str, total: int) -> PoolSnapshot:
    """Wait, as a process that runs nothing, until every task of the pool has ended."""
    async with Runtime(storage=url) as runtime:
        pool = await pool_create(
            name="storm",
            scope="org",
            scope_id="crash",
            max_concurrent=CAP,
            queue=fair_round_robin("tenant_id"),
            backpressure=backpressure_queue(4),
            run_here=False,
        )

        def is_over() -> bool:
            seen = pool.snapshot(tasks=False)
            return not pool.size() and not seen.blocked_submitters and seen.total >= total

        await until(is_over)
        assert await runtime.service(Store).run(compare) == []
        return pool.snapshot()


def check_calls(ledger: Ledger, seen: PoolSnapshot, ended: dict[int, float]) -> None:
    """Check what holds after every run, by the ledger and the pool's last snapshot."""
    assert ledger.most_at_once(ended) <= CAP
    begun = Counter(ledger.names("begin"))
    assert not [name for name, times in begun.items() if times > 1 and "again" not in name]
    done = set(ledger.names("end"))
    submitted = set(ledger.names("submitted"))
    assert {name for name in submitted if name.startswith("again")} <= done
    lost = [task for task in seen.tasks if task.status != "completed"]
    assert {task.stale_reason for task in lost} <= {"interrupted", "never_started"}
    unfinished = {name for name in submitted if name.startswith("once")} - done
    assert len(unfinished) <= len(lost)


async def test_a_killed_process_frees_its_slots_and_loses_only_its_closures(
    tmp_path: Path, lasting_url: str
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with started(lasting_url, ledger, count=4, processes=3) as children:
        victim, *others = [child.pid for child in children]
        await until(lambda: ledger.count("submitted", [victim]) >= 2)
        children[0].kill()
        children[0].wait()
        ended = {victim: time.monotonic()}
        await until(lambda: ledger.count("ready", others) == 2)  # no submit stays blocked
        seen = await all_ended(lasting_url, total=24)

    check_calls(ledger, seen, ended)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_kills_and_pauses(tmp_path: Path, lasting_url: str, seed: int) -> None:
    rng, ledger = random.Random(seed), Ledger(tmp_path / "ledger")
    ended: dict[int, float] = {}
    with started(lasting_url, ledger, count=150, processes=6) as children:
        left = [child.pid for child in children]
        for _ in range(4):
            await asyncio.sleep(rng.uniform(0.2, 1.0))
            victim = children[rng.randrange(len(children))]
            if victim.pid in ended:
                continue
            if rng.random() < 0.5:
                victim.kill()
                victim.wait()
                ended[victim.pid] = time.monotonic()
                left.remove(victim.pid)
            else:
                os.kill(victim.pid, signal.SIGSTOP)
                stopped = time.monotonic()
                await asyncio.sleep(rng.uniform(0.1, 4.0))
                os.kill(victim.pid, signal.SIGCONT)
                ledger.pauses.append((victim.pid, stopped))
        await until(lambda: ledger.count("ready", left) == len(left))
        seen = await all_ended(lasting_url, total=0)

    check_calls(ledger, seen, ended)
