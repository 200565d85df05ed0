"""Real processes share a pool, and some of them are killed or paused."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harn import (
    PoolSnapshot,
    Runtime,
    backpressure_queue,
    durable,
    fair_round_robin,
    pool_create,
)
from harn.pools import leaked_slots
from harn.storage import Store
from harn.storage.log import compare
from tests.crash.hosts import Host, namespaces, proxied_hosts, why_no_namespaces
from tests.crash.pool_ledger import Ledger, check_calls
from tests.postgres import Server

PROCESS = Path(__file__).with_name("shared_pool_process.py")
CAP = 3
POOL: dict[str, Any] = {
    "name": "storm",
    "scope": "org",
    "scope_id": "crash",
    "queue": fair_round_robin("tenant_id"),
    "backpressure": backpressure_queue(4),
    "run_here": False,
}
SEEDS = max(1, int(float(os.environ.get("HARN_STRESS", "1"))))


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LEASE_MS", "2000")
    monkeypatch.setenv("HARN_LEASE_RENEW_MS", "400")


class Crowd:
    """The processes that share the pool."""

    def __init__(self, url: str, ledger: Ledger, count: int, cap: int = CAP) -> None:
        self._url = url
        self._command = [sys.executable, str(PROCESS), url, str(ledger.path), str(count), str(cap)]
        self._ledger = ledger
        self.children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children:
            child.kill()
            child.communicate()

    def start(self, *options: str, on: Host | None = None) -> int:
        """Start one more process; return its pid."""
        command = [*self._command, *options]
        if on is not None:
            command = [*on.prefix, *command]
            command[command.index(self._url)] = on.url
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.children.append(child)
        return child.pid

    @property
    def alive(self) -> list[int]:
        return [child.pid for child in self.children if child.pid not in self._ledger.killed]

    def kill(self, pid: int) -> None:
        [child] = [child for child in self.children if child.pid == pid]
        child.kill()
        child.wait()
        self._ledger.killed[pid] = time.monotonic()

    async def pause(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._ledger.pauses[pid].append(time.monotonic())
        await asyncio.sleep(seconds)
        os.kill(pid, signal.SIGCONT)


async def all_ended(url: str, ledger: Ledger, total: int = 0, cap: int = CAP) -> PoolSnapshot:
    """Wait, as a process that runs nothing, until every task of the pool has ended."""
    async with Runtime(storage=url) as runtime:
        pool = await pool_create(max_concurrent=cap, **POOL)

        def is_over() -> bool:
            seen = pool.snapshot(tasks=False)
            return not pool.size() and not seen.blocked_submitters and seen.total >= total

        await ledger.until(is_over)
        assert await runtime.service(Store).run(compare) == []
        assert await leaked_slots(runtime) == []
        return pool.snapshot()


async def test_a_killed_process_frees_its_slots_and_loses_only_its_closures(
    tmp_path: Path, lasting_url: str
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with Crowd(lasting_url, ledger, count=4) as crowd:
        victim, *others = [crowd.start() for _ in range(3)]
        await ledger.until(lambda: ledger.count("submitted", [victim]) >= 2)
        crowd.kill(victim)
        await ledger.until(lambda: ledger.count("settled", others) == 2)
        seen = await all_ended(lasting_url, ledger, total=26)

    check_calls(ledger, seen, CAP)


@durable(name="crash:shared_stubborn", rerun=True)
async def stubborn(name: str) -> None:
    """The processes have the body of this; here it is only submitted."""


async def test_a_cancelled_call_does_not_run_again_after_its_process_was_killed(
    tmp_path: Path, lasting_url: str
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with Crowd(lasting_url, ledger, count=0) as crowd:
        runner = crowd.start()
        async with Runtime(storage=lasting_url) as runtime:
            pool = await pool_create(max_concurrent=CAP, **POOL)
            task = await pool.submit(stubborn, "stubborn")
            await ledger.until(lambda: ledger.count("begin", [runner]) == 1)

            assert task.cancel()
            await ledger.until(lambda: ledger.count("cancelled", [runner]) >= 1)
            crowd.kill(runner)
            other = crowd.start()  # it could run the call, and has not read the request

            await ledger.until(lambda: ledger.count("ready", [other]) == 1)
            await ledger.until(task.done)
            assert task.status == "cancelled"
            assert ledger.names("begin") == ["stubborn"]
            assert await runtime.service(Store).run(compare) == []
            assert await leaked_slots(runtime) == []


@pytest.mark.parametrize(
    "network", ["proxies", pytest.param("namespaces", marks=pytest.mark.stress)]
)
async def test_a_host_that_is_cut_off_loses_its_slots_and_finds_out_by_itself(
    tmp_path: Path, postgres_url: str, network: str
) -> None:
    if network == "namespaces" and (reason := why_no_namespaces()):
        pytest.skip(reason)
    make = namespaces if network == "namespaces" else proxied_hosts
    ledger = Ledger(tmp_path / "ledger")
    with make(postgres_url, 3) as hosts, Crowd(postgres_url, ledger, count=2, cap=1) as crowd:
        lonely = crowd.start("hold", on=hosts[0])
        await ledger.until(lambda: ledger.count("begin", [lonely]) == 1)  # it has the one slot
        others = [crowd.start(on=host) for host in hosts[1:]]
        hosts[0].cut()
        await ledger.until(lambda: ledger.count("settled", others) == 2)
        assert ledger.count("lost", [lonely]) >= 1
        assert ledger.count("end", [lonely]) == 1  # it has cancelled what it ran
        hosts[0].mend()
        await ledger.until(lambda: ledger.count("settled", [lonely]) == 1)  # it takes part again
        seen = await all_ended(postgres_url, ledger, total=19, cap=1)

    check_calls(ledger, seen, cap=1)


async def storm(
    crowd: Crowd, rng: random.Random, blows: int, restart: Callable[[], None] | None = None
) -> None:
    """Kill, pause and replace processes, and restart the server, as *rng* says."""
    for _ in range(rng.randint(4, 8)):
        crowd.start()
    for _ in range(blows):
        await asyncio.sleep(rng.uniform(0.2, 1.0))
        victim = rng.choice(crowd.alive)
        blow = rng.choice(["kill", "pause", "pause", "restart"])
        if blow == "kill":
            crowd.kill(victim)
            crowd.start()
        elif blow == "pause":
            await crowd.pause(victim, rng.choice([0.1, 0.5, 1.5, 3.0]))
        elif restart is not None:
            await asyncio.to_thread(restart)


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_storm_of_kills_pauses_and_restarts(tmp_path: Path, engine: str, seed: int) -> None:
    rng, ledger = random.Random(seed), Ledger(tmp_path / "ledger")
    with own_store(tmp_path, engine) as (url, restart), Crowd(url, ledger, count=25) as crowd:
        await storm(crowd, rng, blows=8, restart=restart)
        await ledger.until(lambda: ledger.count("ready", crowd.alive) == len(crowd.alive), 240)
        await ledger.until(lambda: ledger.count("settled", crowd.alive) == len(crowd.alive), 240)
        seen = await all_ended(url, ledger)

    check_calls(ledger, seen, CAP)


@contextmanager
def own_store(home: Path, engine: str) -> Iterator[tuple[str, Callable[[], None] | None]]:
    """Make a store for one storm, with what crashes its server and brings it back."""
    if engine == "sqlite":
        yield f"sqlite:///{home}/state/events.sqlite", None
        return
    server = Server(Path(tempfile.mkdtemp(prefix="harn-pg-")), fsync=True)
    server.make()
    server.start()
    try:
        yield f"{server.dsn}?schema=crash", server.restart_at_once
    finally:
        server.stop("immediate")
        shutil.rmtree(server.home, ignore_errors=True)
