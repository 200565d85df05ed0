"""An idle process of a shared pool leaves the store alone, and still finds out what is new."""

from __future__ import annotations

from typing import Any

import pytest

import harn
from harn import Pool, Runtime, pool_create
from harn.storage import Store
from harn.storage.queue import shared_pools
from harn.testing import FakeClock
from tests.fake_clock import fake_clock
from tests.pools.shared_processes import until


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
        monkeypatch.setattr(runtime.service(Store).driver, "mark", lambda: mark)
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


async def test_a_store_that_cannot_tell_is_read_every_second(
    lasting_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=lasting_url, clock=FakeClock(), seed=0) as runtime:
        await opened()
        monkeypatch.setattr(runtime.service(Store).driver, "mark", lambda: None)
        counted = Counted(monkeypatch)

        await fake_clock().advance(seconds=4)

        assert counted.reads >= 4
