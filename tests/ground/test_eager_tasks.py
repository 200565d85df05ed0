"""A loop with an eager task factory (Python 3.12) runs a new task before its creator goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import (
    Child,
    ChildContext,
    Err,
    drain,
    durable,
    parallel_settle,
    pool_create,
    supervisor_start,
    worker_queue,
)

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.12 brought them")


@durable(name="tests:at_once")
async def at_once(n: int) -> int:
    return n


async def closures_and_calls(**options: Any) -> object:
    async with await pool_create(name="reviews", max_concurrent=2, **options) as pool:
        tasks = [await pool.submit(at_once, n) for n in range(3)]
        return [await task for task in tasks]


async def a_closure_on_a_thread_closes_its_own_pool() -> object:
    pool = await pool_create(name="reviews")
    task = await pool.submit(lambda: harn.from_thread(pool.close))
    return "closes its own pool" in ((await task.wait()).error or "")


async def the_error_of_a_branch() -> object:
    async def refuse(n: int) -> None:
        raise ValueError("no")

    (settled,) = (await parallel_settle([1], refuse)).results
    return str(settled.error) if isinstance(settled, Err) else settled


async def jobs() -> object:
    receipts = [await worker_queue("reviews").submit(at_once, n) for n in range(3)]
    await drain("reviews", concurrency=2)
    return [await receipt.result() for receipt in receipts]


async def a_child_with_a_lease() -> object:
    epochs: list[int | None] = []

    async def work(ctx: ChildContext) -> None:
        epochs.append(ctx.lease_epoch)

    supervisor = await supervisor_start(children=[Child("captain", work, active_lease="captain")])
    await supervisor.wait()
    return epochs


CASES: dict[str, tuple[Callable[[], Awaitable[object]], object]] = {
    "a session pool": (closures_and_calls, [0, 1, 2]),
    "a tenant pool": (lambda: closures_and_calls(scope="tenant", scope_id="acme"), [0, 1, 2]),
    "from_thread": (a_closure_on_a_thread_closes_its_own_pool, True),
    "an error in parallel": (the_error_of_a_branch, "no"),
    "jobs": (jobs, [0, 1, 2]),
    "a lease in the store": (a_child_with_a_lease, [1]),
    "a lease in memory": (a_child_with_a_lease, [1]),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", CASES)
def test_work_runs_on_a_loop_with_an_eager_task_factory(name: str, tmp_path: Path) -> None:
    case, expected = CASES[name]

    async def main() -> object:
        factory = getattr(asyncio, "eager_task_factory")  # absent from 3.11's types
        asyncio.get_running_loop().set_task_factory(factory)
        return await case()

    state_dir = None if "in memory" in name else tmp_path
    assert harn.run(main, state_dir=state_dir) == expected
