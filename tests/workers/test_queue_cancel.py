"""Every await of the queue and its consumer, cancelled: no job lost, no claim left over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import harn
from harn import Job, Runtime, drain, durable, worker_queue
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


@durable(name="tests:cancelled")
async def twice(n: int) -> int:
    return 2 * n


async def test_a_cancelled_submit_puts_in_one_whole_job_or_none(url: str) -> None:
    async with Runtime(storage=url):
        queue = worker_queue("q")
        put_in = 0

        async def case() -> None:
            await queue.submit(twice, 21, tenant_id="acme")

        async def check(run: Run) -> None:
            nonlocal put_in
            while await queue.operations.goes_on():
                pass  # a submit that was cancelled on its way may still land
            jobs = await queue.jobs()
            assert 0 <= len(jobs) - put_in <= 1
            put_in = len(jobs)

        assert await sweep(case, check, leftovers=20, may_finish=True) > 1
        report = await drain("q")
        assert (report.acked, put_in > 0) == (put_in, True)


async def test_a_cancelled_wait_for_a_result_loses_and_keeps_nothing(url: str) -> None:
    async with Runtime(storage=url):
        queue = worker_queue("q")

        async def case() -> None:
            receipt = await queue.submit(twice, 21)
            async with harn.scope() as s:
                s.spawn(drain, "q")
                assert await receipt.result() == 42

        async def check(run: Run) -> None:
            summary = await settled()
            assert summary.in_flight == summary.dead == summary.scheduled == 0

        assert await sweep(case, check, leftovers=40, may_finish=True) > 4


VERBS: dict[str, Any] = {
    "job": lambda queue, id: queue.job(id),
    "jobs": lambda queue, id: queue.jobs(tenant_id="acme"),
    "cancel": lambda queue, id: queue.cancel(id, "enough"),
    "retry": lambda queue, id: queue.retry(id),
    "pause": lambda queue, id: queue.pause(tenant_id="acme"),
    "resume": lambda queue, id: queue.resume(tenant_id="acme"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_cancelled_verb_is_done_or_not_done(url: str, verb: str) -> None:
    async with Runtime(storage=url):
        queue = worker_queue("q")
        dead = await dead_job()
        await queue.enqueue("ready", tenant_id="acme")
        if verb == "resume":
            await queue.pause(tenant_id="acme")

        async def case() -> None:
            await VERBS[verb](queue, dead if verb == "retry" else dead + 1)

        async def check(run: Run) -> None:
            first, second = await queue.jobs()
            assert first.status in (("ready", "dead") if verb == "retry" else ("dead",))
            assert second.status in (("ready", "cancelled") if verb == "cancel" else ("ready",))

        assert await sweep(case, check, leftovers=20, may_finish=True) > 1
        await queue.resume(tenant_id="acme")
        await drain("q", lambda job: job.payload)
        assert (await settled()).ready == 0


async def dead_job() -> int:
    queue = worker_queue("q")
    receipt = await queue.enqueue("dead", max_attempts=1)
    claim = await queue.claim_next("me")
    assert claim is not None
    await claim.fail("for the test")
    return receipt.job_id
