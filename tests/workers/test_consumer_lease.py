"""A consumer is alive or it is not: leases, dead consumers, and those that wake too late."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import harn
from harn import Job, NewJob, Runtime, SchedulerPolicy, consumers, worker_queue
from harn.storage.leases import (
    ConsumerLease,
    LeaseStore,
    end_consumer,
    keep_consumer,
    list_consumers,
)
from harn.storage.queue import end_claims_of
from harn.testing import FakeClock
from harn.workers import Consumer

WORKER = """
import asyncio, sys
import harn

async def handle(job):
    print("started", job.id, job.attempts, flush=True)
    try:
        await asyncio.sleep(job.payload)
    except asyncio.CancelledError:
        print("cancelled", job.id, flush=True)
        raise
    return sys.argv[2]

async def main():
    await harn.drain("q", handle, consumer_id=sys.argv[2], concurrency=4, stop_when_empty=False)

harn.run(main, storage=sys.argv[1])
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LEASE_RENEW_MS", "400")
    monkeypatch.setenv("HARN_LEASE_MS", "2500")


@contextmanager
def worker(url: str, name: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, url, name], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


async def has_renewed_twice() -> bool:
    [only] = await consumers()
    return only.seen_at_ms - only.started_at_ms >= 800


async def renew_for(runtime: Runtime) -> None:
    """Write the row of the one consumer that is listed."""
    store = runtime.service(LeaseStore).store
    [row] = await store.run(lambda: list_consumers(10), write=False)
    about = (row.lease, row.consumer_id, row.host, row.pid, row.functions, 2500)
    await store.run(lambda: keep_consumer(ConsumerLease(*about)))


async def stop_outside_transactions(process: subprocess.Popen[str], queue: Any) -> None:
    """Stop *process* at a moment when it holds no lock of the store: others could not go on."""
    async with asyncio.timeout(60):
        while not await has_renewed_twice():  # what it does at its start is over
            await asyncio.sleep(0.05)
    for _ in range(20):
        process.send_signal(signal.SIGSTOP)
        try:
            async with harn.deadline("2s"):
                await queue.pause()
                await queue.resume()
                await renew_for(queue.runtime)
                async with Runtime(storage=queue.runtime.storage_url):
                    pass  # opening it takes locks of its own
            return
        except (harn.DeadlineExceeded, harn.StorageBusy):
            process.send_signal(signal.SIGCONT)
    raise AssertionError("the process was in a transaction each time")


async def test_a_killed_workers_jobs_start_again_long_before_their_claims_expire(
    lasting_url: str, request: pytest.FixtureRequest
) -> None:
    policy = SchedulerPolicy(strategy="drr", max_concurrent_per_key=2)
    async with Runtime(storage=lasting_url):
        # For the worker only: a short lease of our own could expire on a slow machine.
        request.getfixturevalue("quick")
        queue = worker_queue("q", policy)
        receipts = await queue.enqueue_many([NewJob(60, tenant_id="a") for _ in range(2)])
        with worker(lasting_url, "first") as first:
            begun = [await line(first), await line(first)]
            first.kill()
            assert first.wait() == -signal.SIGKILL

            seen: list[tuple[int, int]] = []

            async def handle(job: Job) -> str:
                seen.append((job.id, job.attempts))
                return "second"

            second = Consumer(queue, handle, consumer_id="second", stop_when_empty=False)
            running = harn.spawn(second.run)
            results = [await receipt.result(timeout="60s") for receipt in receipts]
            second.retire()
            await running

        listed = {each.consumer_id: each for each in await consumers()}

    assert sorted(begun) == ["started 1 1", "started 2 1"]
    assert results == ["second", "second"]
    assert sorted(seen) == [(1, 2), (2, 2)]
    assert "second" not in listed
    assert (listed["first"].alive, listed["first"].in_flight) == (False, 0)


@pytest.mark.usefixtures("quick")
async def test_a_worker_that_wakes_too_late_cancels_what_it_ran_and_goes_on(
    lasting_url: str,
) -> None:
    async with Runtime(storage=lasting_url):
        queue = worker_queue("q")
        receipt = await queue.enqueue(60)
        with worker(lasting_url, "paused") as paused:
            assert await line(paused) == "started 1 1"
            await stop_outside_transactions(paused, queue)

            async def handle(job: Job) -> str:
                return "elsewhere"

            other = Consumer(queue, handle, consumer_id="other", stop_when_empty=False)
            running = harn.spawn(other.run)
            result = await receipt.result(timeout="60s")
            other.retire()
            await running
            paused.send_signal(signal.SIGCONT)
            woken = await line(paused)
            again = await queue.enqueue(0)
            taken = await line(paused)
            last = await again.result(timeout="60s")

    assert result == "elsewhere"
    assert woken == "cancelled 1"
    assert taken == "started 2 1"
    assert last == "paused"


@pytest.mark.usefixtures("quick")
async def test_a_job_cancelled_elsewhere_cancels_its_handler_within_a_renewal(
    lasting_url: str,
) -> None:
    async with Runtime(storage=lasting_url):
        receipt = await worker_queue("q").enqueue(60)
        with worker(lasting_url, "w") as process:
            assert await line(process) == "started 1 1"

            assert await receipt.cancel("too late") is True

            assert await line(process) == "cancelled 1"
        assert (await receipt.state()).status == "cancelled"


@pytest.fixture
async def store_runtime(storage_url: str, clock: FakeClock) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=clock) as opened:
        yield opened


class Holding:
    """A handler that holds its jobs until it is told to end."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled: list[int] = []

    async def __call__(self, job: Job) -> str:
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        return "done"


async def test_consumers_are_listed_while_they_work(
    store_runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many([1, 2])
    handler = Holding()
    consumer = Consumer(queue, handler, consumer_id="me", concurrency=2)
    running = harn.spawn(consumer.run)
    await handler.started.wait()
    await clock.advance("1m")

    [me] = await consumers()
    other = await consumers("elsewhere")
    handler.go.set()
    await running

    assert (me.consumer_id, me.queues, me.in_flight, me.alive) == ("me", ("q",), 2, True)
    assert (me.pid, me.as_dict()["queues"]) == (os.getpid(), ["q"])
    assert me.seen_at_ms >= me.started_at_ms + 50_000
    assert other == []
    assert await consumers() == []


async def test_two_queues_of_one_consumer_share_its_lease(store_runtime: Runtime) -> None:
    handlers = [Holding(), Holding()]
    running = []
    for name, handler in zip(("a", "b"), handlers, strict=True):
        queue = worker_queue(name)
        await queue.enqueue(1)
        running.append(harn.spawn(Consumer(queue, handler, consumer_id="me").run))
        await handler.started.wait()

    both = await consumers()
    handlers[0].go.set()
    await running[0]
    one = await consumers()
    handlers[1].go.set()
    await running[1]

    assert [(each.consumer_id, each.queues) for each in both] == [("me", ("a", "b"))]
    assert [each.consumer_id for each in one] == ["me"]
    assert await consumers() == []


async def test_a_job_cancelled_here_cancels_its_handler_at_once(store_runtime: Runtime) -> None:
    queue = worker_queue("q")
    receipt = await queue.enqueue(1)
    handler = Holding()
    running = harn.spawn(Consumer(queue, handler, consumer_id="me").run)
    await handler.started.wait()

    assert await receipt.cancel() is True
    report: Any = await running

    assert handler.cancelled == [1]
    assert (report.drained, report.acked, report.deferred) == (0, 0, 1)
    assert (await receipt.state()).status == "cancelled"


async def test_a_lease_that_ended_is_lost_and_another_one_is_taken(
    store_runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = worker_queue("q")
    await queue.enqueue(1)
    handler = Holding()
    consumer = Consumer(queue, handler, consumer_id="me", stop_when_empty=False)
    running = harn.spawn(consumer.run)
    await handler.started.wait()
    before = consumer._living.lease
    leases = store_runtime.service(LeaseStore).store

    await leases.run(lambda: end_consumer(before))  # as another consumer does after its expiry
    async with asyncio.timeout(30):
        while not handler.cancelled:
            await clock.advance("1s")

    assert handler.cancelled == [1]
    assert consumer._living.lease != before
    handler.go.set()
    consumer.retire()
    await running


async def test_what_was_claimed_under_a_lease_that_had_ended_is_free_at_once(
    store_runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("q")
    await queue.enqueue(1)
    handler = Holding()
    consumer = Consumer(queue, handler, claim_ttl="6h", stop_when_empty=False)
    running = harn.spawn(consumer.run)
    await handler.started.wait()
    began, ended = clock.now_ms(), consumer._living.lease
    handler.started.clear()

    # As if others had ended its claims before this one was made: they do not look again.
    await store_runtime.service(LeaseStore).store.run(lambda: end_consumer(ended))
    async with asyncio.timeout(30):
        while not handler.started.is_set():
            await clock.advance("1s")

    assert handler.cancelled == [1]
    assert clock.now_ms() - began < 5 * 60_000
    assert await queue.store.run(lambda: end_claims_of("q", ended, store_runtime.ids.new)) == 0
    handler.go.set()
    consumer.retire()
    assert (await running).acked == 1


async def test_a_claim_that_is_answered_after_its_lease_was_lost_is_given_back(
    store_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = worker_queue("q")
    receipt = await queue.enqueue(1)
    consumer = Consumer(queue, lambda job: job.attempts)
    wanted = consumer._wanted

    def and_lost() -> Any:
        monkeypatch.setattr(consumer, "_wanted", wanted)
        claiming = wanted()
        consumer._living.lease = store_runtime.ids.uuid7()
        return claiming

    monkeypatch.setattr(consumer, "_wanted", and_lost)
    report = await consumer.run()

    assert (report.acked, await receipt.result()) == (1, 1)
    claims = await harn.event_log_read("worker.q.claims")
    assert [each.kind for each in claims] == [
        *("job_claimed", "job_released", "job_claimed", "job_acked"),
    ]
    assert claims[0].payload["lease"] != claims[2].payload["lease"]
