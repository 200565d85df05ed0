"""What a process reads of the changes that others made in a shared pool."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

import harn
from harn import Runtime, pool_create
from harn.storage import Store
from harn.storage.log import skip_offsets
from harn.storage.queue import pool_views, shared_pools
from harn.storage.queue.pool_views import PoolChanges
from harn.topics import queue_topics


@harn.durable(name="tests:pool_changes")
async def length(text: str) -> int:
    return len(text)


@pytest.fixture
async def runtime(lasting_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=lasting_url) as runtime:
        yield runtime


async def queue_of_ended_calls(sizes: list[int]) -> str:
    """Run a call with an argument of each size in a new pool; return the pool's queue."""
    pool: Any = await pool_create(name="large", scope="org", scope_id="acme")
    for size in sizes:
        await (await pool.submit(length, "x" * size))
    return str(pool._slots.queue_name)


async def read_all(runtime: Runtime, queue: str) -> list[PoolChanges]:
    """Read as another process does: again until a page says that it was the last."""
    pages: list[PoolChanges] = []
    jobs = claims = 0
    while not pages or not pages[-1].is_all:
        look = partial(shared_pools.pool_changes, queue, jobs, claims, "another")
        pages.append(await runtime.service(Store).run(look, write=False))
        jobs, claims = pages[-1].jobs_head, pages[-1].claims_head
    return pages


async def test_all_calls_of_others_are_found_when_they_are_large(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await queue_of_ended_calls([3000] * 8)
    monkeypatch.setattr(pool_views, "BUDGET", 10_000)

    pages = await read_all(runtime, queue)

    assert len(pages) > 1
    assert {job.id for page in pages for job in page.touched} == set(range(1, 9))


async def test_one_read_tells_all_of_few_small_calls(runtime: Runtime) -> None:
    queue = await queue_of_ended_calls([1] * 8)

    [page] = await read_all(runtime, queue)

    assert {job.id for job in page.touched} == set(range(1, 9))


async def test_offsets_without_records_at_the_end_are_not_waited_for(runtime: Runtime) -> None:
    queue = await queue_of_ended_calls([1])
    skip = partial(skip_offsets, queue_topics(queue).claims, 2)
    await runtime.service(Store).run(skip)

    assert len(await read_all(runtime, queue)) == 2
