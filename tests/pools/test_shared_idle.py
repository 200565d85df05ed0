"""An idle process of a shared pool leaves the store alone, and still finds out what is new."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

import harn
from harn import Pool, Runtime, pool_create
from harn.pools import shared_follow
from harn.pools.shared_pool import SharedPool
from harn.storage import Store
from harn.storage.engines.postgres import PostgresDriver, notify
from harn.storage.engines.postgres.notify import Notifier
from harn.storage.queue import shared_pools
from harn.testing import FakeClock
from tests.fake_clock import fake_clock
from tests.pools.shared_processes import Process, until


@harn.durable(name="tests:shared_idle")
async def same(n: int) -> int:
    return n


class Counted:
    """Counts how often a follower reads its pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self._read = shared_pools.pool_changes
        monkeypatch.setattr(shared_pools, "pool_changes", self._count)

    def _count(self, *args: Any) -> Any:
        self.reads += 1
        return self._read(*args)


async def opened() -> Pool:
    return await pool_create(name="idle", scope="org", scope_id="acme")


async def test_an_idle_pool_reads_only_when_the_store_has_changed(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=lasting_url, clock=FakeClock(), seed=0) as runtime:
        pool = await opened()
        await (await pool.submit(same, 1))
        await until(lambda: pool.size() == 0)
        mark = "unchanged"
        driver = runtime.service(Store).driver
        monkeypatch.setattr(driver, "mark", lambda topics: mark)
        monkeypatch.setattr(driver, "tells_marks", False, raising=False)
        await fake_clock().advance(seconds=2)
        counted = Counted(monkeypatch)

        await fake_clock().advance(seconds=4)
        assert counted.reads == 0

        mark = "changed"
        await fake_clock().advance(seconds=2)
        assert counted.reads == 1

        channel = harn.channel("never")
        task = await pool.submit(channel.receive)  # with tasks, time matters as well
        counted.reads = 0
        await fake_clock().advance(seconds=4)
        assert counted.reads >= 3
        task.cancel()
        await task.wait()


class Followed:
    """An idle pool on PostgreSQL, and another process that has it open."""

    def __init__(self, ours: Pool, theirs: Pool) -> None:
        self.ours = ours
        self.theirs = theirs
        assert isinstance(ours, SharedPool)
        self.follower = ours._follower

    async def rests(self) -> None:
        await until(lambda: self.follower._rests)

    async def counted(self, monkeypatch: pytest.MonkeyPatch) -> Counted:
        """Count the reads from now on, while the process rests."""
        await self.rests()
        return Counted(monkeypatch)


@pytest.fixture
async def followed(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    """Nothing is told by a notification, and a resting process looks by itself in an hour."""
    monkeypatch.setattr(Notifier, "at_once", lambda notifier, topics: [])
    monkeypatch.setattr(Notifier, "tell", lambda notifier, topics: None)
    monkeypatch.setattr(shared_follow, "READ_EVERY_IDLE", 3600.0)
    async with Runtime(storage=postgres_url) as one, Runtime(storage=postgres_url) as two:
        pools: list[Any] = [await Process(each).open(max_concurrent=1) for each in (one, two)]
        yield Followed(*pools)


async def test_an_idle_process_learns_what_is_new_without_a_notification(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = await followed.counted(monkeypatch)

    gate = asyncio.Event()
    task = await followed.theirs.submit(gate.wait)
    await until(lambda: followed.ours.size() == 1)
    gate.set()
    await task

    await until(lambda: followed.ours.snapshot().completed == 1)
    assert counted.reads >= 2
    await followed.rests()


async def test_a_process_that_submits_looks_by_itself_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = await followed.counted(monkeypatch)

    gate = asyncio.Event()
    task = await followed.ours.submit(gate.wait)

    await until(lambda: counted.reads >= 3)
    assert not followed.follower._rests
    gate.set()
    await task
    await followed.rests()


async def test_an_idle_process_whose_listener_is_gone_looks_by_itself(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await followed.rests()
    driver = followed.ours._slots.runtime.service(Store).driver
    assert isinstance(driver, PostgresDriver)
    monkeypatch.setattr(notify, "PAUSE", 3600.0)  # after which it would connect again
    with driver._listener._lock:
        assert driver._listener._socket is not None
        driver._listener._socket.shutdown(socket.SHUT_RDWR)

    task = await followed.theirs.submit(lambda: "told")
    await task

    await until(lambda: followed.ours.snapshot().completed == 1)
    assert not followed.follower._rests


async def test_a_store_that_cannot_tell_is_read_every_second(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=lasting_url, clock=FakeClock(), seed=0) as runtime:
        await opened()
        monkeypatch.setattr(runtime.service(Store).driver, "mark", lambda topics: None)
        counted = Counted(monkeypatch)

        await fake_clock().advance(seconds=4)

        assert counted.reads >= 4


async def test_a_fault_of_ours_in_a_read_is_logged_and_the_pool_goes_on(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, faults = shared_pools.pool_changes, [ZeroDivisionError("a fault of ours")]

    def faulty(*args: Any) -> Any:
        if faults:
            raise faults.pop()
        return read(*args)

    async with Runtime(storage=lasting_url) as one, Runtime(storage=lasting_url) as two:
        ours, theirs = [await Process(each).open() for each in (one, two)]
        monkeypatch.setattr(shared_pools, "pool_changes", faulty)
        gate = asyncio.Event()

        task = await theirs.submit(gate.wait)

        await until(lambda: not faults and ours.size() == 1)
        gate.set()
        await task
        await until(lambda: ours.size() == 0)
    assert "could not be followed" in caplog.text
