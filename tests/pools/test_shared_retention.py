"""The ended tasks of a shared pool leave the store when retention is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import harn
from harn import PoolSnapshot, Retention, Runtime, pool_create
from harn.storage import Store
from harn.storage.log import compare
from harn.testing import FakeClock
from tests.fake_clock import fake_clock
from tests.pools.shared_processes import until


@harn.durable(name="tests:retained")
async def same(n: int) -> int:
    return n


@pytest.fixture
async def runtime(lasting_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=lasting_url, clock=FakeClock(), seed=0) as runtime:
        yield runtime


async def opened(**options: Any) -> harn.Pool:
    return await pool_create(name="gpu", scope="org", scope_id="acme", **options)


async def as_stored(runtime: Runtime, **options: Any) -> PoolSnapshot:
    """Return the pool as the next process finds it."""
    async with Runtime(storage=runtime.storage_url, clock=FakeClock(), seed=1):
        pool = await opened(**options)
        return pool.snapshot()


async def look_at_retention() -> None:
    """Let a minute pass, after which the process looks for old tasks, and let it trim them."""
    await fake_clock().advance(minutes=1)
    for _ in range(5):
        await fake_clock().advance(seconds=1)


async def test_59_ended_tasks_are_trimmed_when_they_are_old(runtime: Runtime) -> None:
    options = {"retention": Retention(age="10m")}
    pool = await opened(**options)
    for n in range(3):
        await (await pool.submit(same, n, idempotency_key=f"{n}"))
    await fake_clock().advance(minutes=5)
    await look_at_retention()
    kept = await as_stored(runtime, **options)

    await fake_clock().advance(minutes=6)
    await look_at_retention()

    left = await as_stored(runtime, **options)
    assert [task.result for task in kept.tasks] == [0, 1, 2]
    assert (left.tasks, left.completed) == ([], 3)
    assert await runtime.service(Store).run(compare) == []
    again = await pool.submit(same, 7, idempotency_key="0")
    assert await again == 7


async def test_59_ended_tasks_are_trimmed_when_they_are_many(runtime: Runtime) -> None:
    options = {"retention": Retention(count=2)}
    pool = await opened(**options)
    for n in range(5):
        await (await pool.submit(same, n))
    await look_at_retention()
    kept = await as_stored(runtime, **options)

    await fake_clock().advance(minutes=11)
    await look_at_retention()

    left = await as_stored(runtime, **options)
    assert len(await harn.event_log_read(f"worker.{pool.id}")) == 2
    assert [task.result for task in left.tasks] == [3, 4]
    assert (kept.completed, left.completed) == (5, 5)
    assert await runtime.service(Store).run(compare) == []


async def test_a_task_that_has_not_ended_stays_and_holds_those_behind_it(
    runtime: Runtime,
) -> None:
    options: dict[str, Any] = {"retention": Retention(age="1m"), "max_concurrent": 2}
    pool = await opened(**options)
    waiting = harn.channel("never")
    running = await pool.submit(waiting.receive)
    await (await pool.submit(same, 1))
    await fake_clock().advance(minutes=2)

    await look_at_retention()

    left = await as_stored(runtime, **options)
    assert [task.status for task in left.tasks] == ["running", "completed"]
    running.cancel()
    await running.wait()
    await until(lambda: pool.size() == 0)
