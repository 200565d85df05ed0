"""Every await of the queue and its consumer, cancelled: no job lost, none held by nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import harn
from harn import Job, Runtime, drain, worker_queue
from tests.sweep import Run, sweep


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/q.sqlite"


async def settled() -> Any:
    """Wait until whatever was given back has arrived."""
    queue = worker_queue("q")
    for _ in range(50):
        summary = await queue.summary()
        if not summary.in_flight:
            return summary
        await asyncio.sleep(0.005)
    return await queue.summary()


async def test_a_cancelled_claim_holds_nothing(url: str) -> None:
    async with Runtime(storage=url):
        queue = worker_queue("q")
        await queue.enqueue_many(range(3))

        async def case() -> None:
            claim = await queue.claim_next("w")
            assert claim is not None
            await claim.release()

        async def check(run: Run) -> None:
            summary = await settled_or_released(run)
            assert summary.ready + summary.in_flight == 3

        async def settled_or_released(run: Run) -> Any:
            # A cancel inside release may come before it: then the claim expires, as it must.
            return await settled()

        assert await sweep(case, check, leftovers=20) > 2


async def test_a_cancelled_drain_loses_and_keeps_nothing(url: str) -> None:
    async with Runtime(storage=url):
        queue = worker_queue("q")
        total = 0

        async def handler(job: Job) -> None:
            await harn.sleep(0)

        async def case() -> None:
            nonlocal total
            await queue.enqueue_many(range(4))
            total += 4
            await drain("q", handler, concurrency=2)

        async def check(run: Run) -> None:
            summary = await settled()
            assert summary.in_flight == 0
            assert summary.dead == summary.purged == summary.scheduled == 0

        assert await sweep(case, check, leftovers=40, may_finish=True) > 4
