"""The crew: handlers begin on shared tasks, and one that waits keeps its task."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

import harn
from harn import Job, Runtime, drain, worker_queue
from harn.current import current_frame
from harn.testing import fresh_runtime
from harn.workers import Consumer

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


@pytest.fixture
async def runtime() -> Any:
    async with fresh_runtime() as runtime:
        yield runtime


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_handlers_that_never_wait_share_a_task(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many(range(20))
    tasks = []

    async def handler(job: Job) -> None:
        tasks.append(this_task())

    report = await drain("q", handler, concurrency=20)

    assert report.acked == 20
    assert len(set(tasks)) <= 2


async def test_a_task_that_waited_for_one_job_works_on_no_other(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many(range(40))
    jobs: dict[asyncio.Task[Any], list[Any]] = {}

    async def handler(job: Job) -> None:
        jobs.setdefault(this_task(), []).append(job.payload)
        if job.payload % 3 == 0:
            await asyncio.sleep(0)
            assert this_task() in jobs
            jobs[this_task()].append("waited")

    await drain("q", handler, concurrency=7)

    assert sum(len(done) for done in jobs.values()) == 40 + 14
    assert all("waited" not in done[:-1] for done in jobs.values())


async def test_all_jobs_of_a_claim_begin_in_doubling_steps(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many(range(64))
    turn, began = 0, []
    release = asyncio.Event()

    async def handler(job: Job) -> None:
        began.append(turn)
        await release.wait()

    async def count_turns() -> None:
        nonlocal turn
        while len(began) < 64:
            turn += 1
            await asyncio.sleep(0)
        release.set()

    async with asyncio.timeout(30):
        async with harn.scope():
            harn.spawn(count_turns)
            await drain("q", handler, concurrency=64)

    assert max(began) - min(began) <= 7
    steps = [Counter(began)[n] for n in sorted(set(began))]
    assert steps[0] == 2
    assert all(later <= 2 * earlier for earlier, later in pairwise(steps))


async def test_each_handler_has_a_context_a_task_and_cleanups_of_its_own(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many(range(6))
    seen: list[tuple[str, str]] = []
    dropped: list[int] = []

    async def handler(job: Job) -> None:
        seen.append((colour.get(), current_frame().task.id))
        colour.set(f"set by {job.payload}")
        harn.defer(lambda: dropped.append(job.payload))
        if job.payload == 3:
            await asyncio.sleep(0)
            assert colour.get() == "set by 3"

    await drain("q", handler, concurrency=6)

    assert [each for each, _ in seen] == ["none"] * 6
    assert len({each for _, each in seen}) == 6
    assert sorted(dropped) == list(range(6))
    assert not [task for task in runtime.tasks if task.name == "job"]


async def test_a_handler_that_cancels_its_own_task_spoils_no_other(runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(10))
    tasks: dict[asyncio.Task[Any], int] = {}

    async def handler(job: Job) -> None:
        assert this_task() not in tasks, "a cancelled task works on another job"
        if job.payload == 4:
            tasks[this_task()] = job.payload
            this_task().cancel()

    report = await drain("q", handler, concurrency=10)

    assert report.acked == 10
    assert len(tasks) == 1


async def test_timeouts_and_groups_of_asyncio_work_in_a_handler(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many(range(8))

    async def fail() -> None:
        raise LookupError("child")

    async def handler(job: Job) -> str:
        if job.payload % 2:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await asyncio.sleep(60)
            return "timed out"
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(60)
        return "group"

    report = await drain("q", handler, concurrency=8)

    assert Counter(each["outcome"] for each in report.responses) == {"timed out": 4, "group": 4}


async def test_a_cancelled_drain_begins_no_more_jobs_and_leaves_no_task(runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(30))
    began: list[int] = []

    async def handler(job: Job) -> None:
        began.append(job.payload)
        draining.cancel()
        await asyncio.sleep(60)

    draining = asyncio.ensure_future(drain("q", handler, concurrency=30))
    with pytest.raises(asyncio.CancelledError):
        await draining

    assert len(began) < 30
    assert (await queue.summary()).ready == 30
    assert not [each for each in asyncio.all_tasks() if ":job" in each.get_name()]


async def test_a_job_whose_claim_is_lost_before_its_handler_began_is_not_begun(
    runtime: Runtime,
) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(5))
    began: list[int] = []

    async def handler(job: Job) -> None:
        began.append(job.payload)
        if len(began) == 1:
            for running in list(consumer._running):
                if running.claim.job.payload != job.payload:
                    running.lose("expired")

    consumer = Consumer(queue, handler, concurrency=5)
    report = await consumer.run()

    assert len(began) == 1
    assert (report.acked, report.deferred) == (1, 4)
