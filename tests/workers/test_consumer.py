"""Draining: settle what handlers did, renew meanwhile, cancel what is lost, give back on stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import Job, NewJob, Runtime, SchedulerPolicy, drain, event_log_read, worker_queue
from harn.testing import FakeClock
from harn.workers import Bury, Consumer, GiveBack, RetryLater


@pytest.fixture
async def store_runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url) as opened:
        yield opened


async def test_a_drain_handles_everything_and_reports(store_runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(25))

    async def handler(job: Job) -> int:
        if job.payload == 7:
            raise ValueError("seven")
        return int(job.payload) * 2

    report = await drain("q", handler, consumer_id="me", concurrency=4)

    assert (report.drained, report.acked, report.deferred) == (25, 24, 1)
    assert report.claim_ttl_ms == 300_000
    assert report.summary.in_flight == 1
    by_job = {each["job_event_id"]: each for each in report.responses}
    assert by_job[4]["outcome"] == 6
    assert by_job[8]["error"] == "ValueError: seven"
    assert len(await event_log_read("worker.q.responses")) == 25


async def test_plain_functions_run_on_threads(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many([1])
    threads: list[str] = []

    await drain("q", lambda job: threads.append(threading.current_thread().name))

    assert threads and threads[0] != threading.main_thread().name


async def test_no_more_handlers_at_once_than_the_concurrency(runtime: Runtime) -> None:
    await worker_queue("q").enqueue_many(range(30))
    at_once = most = 0
    all_began = asyncio.Event()

    async def handler(job: Job) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 5:
            all_began.set()
        await asyncio.wait_for(all_began.wait(), 30)
        await asyncio.sleep(0)
        at_once -= 1

    await drain("q", handler, concurrency=5)

    assert most == 5


async def test_a_handler_knows_for_whom_it_works(runtime: Runtime) -> None:
    await worker_queue("q").enqueue(1, tenant_id="acme", trigger_id="review")
    seen: list[Any] = []

    async def handler(job: Job) -> None:
        context = harn.runtime_context()
        seen.extend([context.tenant_id, context.trigger_id])

    await drain("q", handler)

    assert seen == ["acme", "review"]


async def test_a_handler_can_give_back_bury_or_ask_for_a_retry(
    runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(["back", "bury", "later"])

    async def handler(job: Job) -> None:
        if job.payload == "back":
            raise GiveBack("1m")
        if job.payload == "bury":
            raise Bury("no hope")
        raise RetryLater("2m")

    report = await drain("q", handler, concurrency=3)

    assert (report.summary.scheduled, report.summary.dead, report.acked) == (2, 1, 0)


async def test_a_long_handler_keeps_its_claim(runtime: Runtime, clock: FakeClock) -> None:
    queue = worker_queue("q")
    await queue.enqueue("long")
    done: list[int] = []

    async def handler(job: Job) -> None:
        await harn.sleep("20m")
        done.append(job.id)

    draining = harn.spawn(drain, "q", handler)
    await clock.advance("10m")
    stolen = await queue.claim_next("thief")
    await clock.advance("11m")
    report = await draining

    assert stolen is None
    assert done == [1]
    assert report.acked == 1


async def test_C6_a_handler_whose_claim_is_lost_is_cancelled(
    runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("q")
    await queue.enqueue("job")
    cancelled: list[int] = []

    async def handler(job: Job) -> None:
        try:
            await harn.sleep("1h")
        except asyncio.CancelledError:
            cancelled.append(job.id)
            raise

    consumer = Consumer(queue, handler, claim_ttl="5m")
    draining = harn.spawn(consumer.run)
    await clock.advance("1s")
    await steal(queue, clock)
    await clock.advance("5m")
    consumer.stop()
    report = await draining

    assert cancelled == [1]
    assert (report.acked, report.deferred) == (0, 1)


async def steal(queue: Any, clock: FakeClock) -> None:
    """Take the held job over, as if its claim had expired."""
    from harn.storage import Operation, Store, ask
    from harn.storage.queue.job_changes import settle_jobs
    from harn.storage.queue.queue_row import open_queue, save_queue, set_alarm

    def expire() -> Operation[None]:
        state = yield from open_queue("q")
        assert state is not None
        set_alarm(state, 0)
        yield from save_queue(state)
        rows = yield ask("one_job", queue_id=1, id=1)
        yield from settle_jobs(state, [(1, 2, 1, 1, rows[0][5], None, None, None)])

    await harn.current_runtime().service(Store).run(expire)
    assert await queue.claim_next("thief", ttl="1h") is not None


async def test_stopping_claims_no_more_and_lets_handlers_finish(runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(5))
    started = asyncio.Event()
    go_on = asyncio.Event()

    async def handler(job: Job) -> None:
        started.set()
        await go_on.wait()

    consumer = Consumer(queue, handler, concurrency=2, stop_when_empty=False)
    running = harn.spawn(consumer.run)
    await started.wait()
    consumer.stop()
    go_on.set()
    report = await running

    assert (report.acked, report.summary.ready, report.summary.in_flight) == (2, 3, 0)


async def test_G12_giving_up_leaves_no_job_to_wait_for_its_claim(runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(3))
    started = asyncio.Event()

    async def handler(job: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    consumer = Consumer(queue, handler, concurrency=2, stop_when_empty=False)
    running = harn.spawn(consumer.run)
    await started.wait()
    consumer.give_up()
    report = await running

    assert (report.summary.ready, report.summary.in_flight) == (3, 0)
    claim = await queue.claim_next("next")
    assert claim is not None and claim.attempt == 1


async def test_a_cancelled_drain_gives_its_jobs_back(store_runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(3))
    started = asyncio.Event()

    async def handler(job: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    draining = harn.spawn(drain, "q", handler)
    await started.wait()
    draining.cancel()
    with pytest.raises(harn.TaskCancelled):
        await draining

    assert (await queue.summary()).ready == 3


async def test_a_waiting_consumer_starts_a_new_job_at_once(store_runtime: Runtime) -> None:
    queue = worker_queue("q")
    got: list[Any] = []
    arrived = asyncio.Event()

    async def handler(job: Job) -> None:
        got.append(job.payload)
        arrived.set()

    consumer = Consumer(queue, handler, stop_when_empty=False)
    running = harn.spawn(consumer.run)
    for n in range(5):
        arrived.clear()
        await queue.enqueue(n)
        await arrived.wait()
    consumer.stop()
    await running

    assert got == [0, 1, 2, 3, 4]


async def test_a_waiting_consumer_takes_what_comes_due(runtime: Runtime, clock: FakeClock) -> None:
    queue = worker_queue("q")
    await queue.enqueue("later", not_before="10m")
    got: list[Any] = []
    consumer = Consumer(queue, lambda job: got.append(job.payload), stop_when_empty=False)
    running = harn.spawn(consumer.run)

    await clock.advance("9m")
    before = list(got)
    await clock.advance("61s")
    await until(lambda: got == ["later"])
    consumer.stop()
    await running

    assert before == []


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_a_cancelled_claim_gives_the_job_back(store_runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue("job")

    claiming = harn.spawn(queue.claim_next, "w")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(harn.TaskCancelled):
        await claiming

    while (found := await queue.claim_next("other")) is None:
        await asyncio.sleep(0)
    assert found.attempt == 1


async def test_a_handler_that_blocks_the_loop_for_three_lives_keeps_its_claim(
    tmp_path: Path,
) -> None:
    import time

    url = f"sqlite:///{tmp_path}/q.sqlite"
    seen: list[Any] = []

    def rival(stop: threading.Event) -> None:
        async def try_to_steal() -> None:
            queue = worker_queue("q")
            while not stop.is_set():
                seen.append(await queue.claim_next("rival", ttl="1s"))
                await harn.sleep("20ms")

        harn.run(try_to_steal, storage=url)

    async def handler(job: Job) -> str:
        stop = threading.Event()
        thread = threading.Thread(target=rival, args=(stop,))
        thread.start()
        time.sleep(1.8)
        stop.set()
        thread.join()
        return "done"

    async with Runtime(storage=url):
        await worker_queue("q").enqueue("job")
        report = await drain("q", handler, claim_ttl="600ms")

    assert report.acked == 1
    assert seen and set(seen) == {None}


async def test_in_memory_too_a_blocked_loop_keeps_its_claim(tmp_path: Path) -> None:
    import time

    async with Runtime():
        queue = worker_queue("q")
        await queue.enqueue("job")
        claims: list[Any] = []

        async def handler(job: Job) -> str:
            time.sleep(0.9)
            claims.append(await queue.claim_next("rival"))
            return "done"

        report = await drain("q", handler, claim_ttl="300ms")

    assert report.acked == 1
    assert claims == [None]


async def test_drr_shares_hold_across_concurrent_consumers(store_runtime: Runtime) -> None:
    policy = SchedulerPolicy(strategy="drr", weights={"a": 3})
    queue = worker_queue("q", policy)
    await queue.enqueue_many([NewJob(n, tenant_id=t) for n in range(60) for t in "ab"])
    order: list[str] = []

    async def handler(job: Job) -> None:
        order.append(job.tenant_id or "")

    async with harn.scope() as s:
        for _ in range(3):
            s.spawn(Consumer(worker_queue("q", policy), handler, concurrency=2).run)

    assert abs(order[:40].count("a") - 30) <= 6
    assert len(order) == 120


async def test_an_answer_in_the_turn_of_a_cancel_is_taken_once(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(range(3))
    started: list[int] = []
    start, claim = Consumer._start, type(queue.operations).claim

    def counted(consumer: Consumer, held: Any) -> None:
        started.append(held.job.id)
        start(consumer, held)

    def answered_late(operations: Any, wanted: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def pass_on(found: asyncio.Future[Any]) -> None:
            draining.cancel()
            answer.set_result(found.result())

        claim(operations, wanted).add_done_callback(pass_on)
        return answer

    monkeypatch.setattr(Consumer, "_start", counted)
    monkeypatch.setattr(type(queue.operations), "claim", answered_late)

    async def handler(job: Job) -> None:
        await asyncio.Event().wait()

    draining = asyncio.ensure_future(drain("q", handler, concurrency=3))
    with pytest.raises(asyncio.CancelledError):
        await draining

    assert started == [1, 2, 3]
    assert (await queue.summary()).ready == 3
