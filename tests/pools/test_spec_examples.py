"""The examples of the two pages on pools, in Python."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

import harn
from harn import Backpressure, QueueStrategy, fair_round_robin, pool_create, pool_get, pool_wait

pytestmark = pytest.mark.usefixtures("runtime")


async def agent_loop(task: str, system: str) -> str:
    await asyncio.sleep(0)
    return f"{system}: {task}"


async def review(pr: int) -> int:
    return pr


async def test_create_submit_and_wait() -> None:
    pool = await pool_create(
        name="pr-review", max_concurrent=5, queue=fair_round_robin("tenant_id")
    )

    handle = await pool.submit(
        partial(agent_loop, "review this PR", "You are a careful reviewer."),
        priority=10,
        tenant_id="acme",
        idempotency_key="review-pr-1984",
    )
    result = await pool_wait(handle)

    assert pool_get("pr-review") is pool
    assert result.result == "You are a careful reviewer.: review this PR"
    assert (result.priority, result.labels, result.idempotency_key) == (
        10,
        {"tenant_id": "acme"},
        "review-pr-1984",
    )


async def test_a_list_of_handles_also_through_wait_agent() -> None:
    pool = await pool_create(max_concurrent=2)
    handles = [await pool.submit(partial(review, number)) for number in range(3)]

    outcomes = await pool_wait(handles)

    assert [outcome.result for outcome in outcomes] == [0, 1, 2]
    assert await harn.wait_agent(handles) == outcomes
    assert await harn.wait_agent(handles[0]) == outcomes[0]


async def test_the_namespaces() -> None:
    queue, bp = QueueStrategy(), Backpressure()

    tenant_work = await pool_create(
        name="tenant-work", max_concurrent=4, queue=queue.fair_round_robin("tenant_id")
    )
    intake = await pool_create(
        name="webhook-intake", max_concurrent=10, backpressure=bp.ring_buffer(100)
    )
    reviews = await pool_create(
        name="review", max_concurrent=2, backpressure=bp.queue(100, "fail_submitter")
    )

    assert tenant_work.snapshot().queue_strategy == "fair_round_robin"
    assert intake.snapshot().backpressure.max_depth == 100
    assert reviews.snapshot().backpressure.on_full == "fail_submitter"


async def test_two_submits_with_one_key_are_one_task() -> None:
    pool = await pool_create()

    first = await pool.submit(partial(review, 1984), idempotency_key="review-pr-1984")
    second = await pool.submit(partial(review, 1984), idempotency_key="review-pr-1984")

    assert first.id == second.id


async def test_two_tenants_with_a_hundred_tasks_each_interleave() -> None:
    pool, order = await pool_create(queue=fair_round_robin("tenant_id")), []

    async def work(tenant: str) -> None:
        order.append(tenant)

    for tenant in ("a", "b"):
        for _ in range(100):
            await pool.submit(partial(work, tenant), tenant_id=tenant)
    await pool.close()

    assert order[1:199] == ["a", "b"] * 99
    assert (order[0], order[199]) == ("a", "b")


async def test_a_quiet_customer_runs_on_the_second_free_slot() -> None:
    pool, order = await pool_create(queue=fair_round_robin("tenant_id")), []

    async def work(tenant: str) -> None:
        order.append(tenant)

    for _ in range(500):
        await pool.submit(partial(work, "noisy"), tenant_id="noisy")
    for _ in range(10):
        await pool.submit(partial(work, "quiet"), tenant_id="quiet")
    await pool.close()

    assert order.index("quiet") == 2  # the first ran at once, then one turn each
    assert order[21:] == ["noisy"] * 489
