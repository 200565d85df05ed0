"""An event goes into a worker queue and comes out of it again at its local handler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harn import (
    Runtime,
    SpawnToPool,
    TriggerEvent,
    channel_emit,
    durable,
    event_log_read,
    pool_create,
    topics,
    trigger_register,
)
from harn.storage import Store, ask
from harn.testing import FakeClock
from harn.triggers import DeadLetters, JobRunner, check_binding
from harn.triggers.retry import FROM_MANIFEST
from harn.workers import Consumer, DrainReport, Job, worker_queue
from tests.sweep import Run, sweep
from tests.triggers.trigger_events import an_event


async def produce(*payloads: Any, **options: Any) -> list[Any]:
    await trigger_register(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler="worker://triage",
        **options,
    )
    return [(await channel_emit("x", payload)).dispatched[0] for payload in payloads]


def runner_of(runtime: Runtime, handler: Any, **options: Any) -> JobRunner:
    binding = check_binding(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={},
        handler=handler,
        options=options,
        default_retry=FROM_MANIFEST,
    )
    return JobRunner(runtime, lambda id: binding)


async def marks_of(runtime: Runtime) -> Any:
    def dump() -> Any:
        return (yield ask("trigger_dump_marks"))

    return await runtime.service(Store).run(dump)


async def consume(runtime: Runtime, handler: Any, workers: int = 1, **options: Any) -> DrainReport:
    """Drain the queue with what a consumer's own definition of the trigger says."""
    runner = runner_of(runtime, handler, **options)
    queue = worker_queue("triage")
    return await Consumer(
        queue, runner, claim_ttl="1m", concurrency=workers, triggers=frozenset({"t"})
    ).run()


async def test_an_event_survives_its_way_through_a_queue(storage_url: str) -> None:
    seen: list[TriggerEvent] = []

    async def handler(event: TriggerEvent) -> str:
        seen.append(event)
        return "done"

    async with Runtime(storage=storage_url) as runtime:
        [handle] = await produce({"n": 1}, priority="high")
        report = await consume(runtime, handler)

    assert (handle.status, handle.result["queue"]) == ("dispatched", "triage")
    assert report.acked == 1
    assert report.responses[0]["outcome"] == "done"
    assert seen[0].id == handle.event_id
    assert seen[0].get("provider_payload.payload.n") == 1


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_a_job_is_acked_when_the_closure_that_it_submitted_has_ended(
    storage_url: str, ends: str
) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await end.wait()
        if ends == "badly":
            raise RuntimeError("the pool tells this")

    async with Runtime(storage=storage_url) as runtime:
        await pool_create(name="work")
        await produce(1)
        consuming = asyncio.ensure_future(consume(runtime, SpawnToPool("work", lambda event: work)))
        await begun.wait()
        meanwhile = await worker_queue("triage").summary()
        end.set()
        report = await consuming

    assert (meanwhile.in_flight, meanwhile.acked) == (1, 0)
    assert report.acked == 1


async def test_a_job_does_not_wait_for_a_durable_call_that_a_journal_keeps(tmp_path: Path) -> None:
    async with Runtime(state_dir=tmp_path, pipeline_id="nightly") as runtime:
        await pool_create(name="work", scope="pipeline")
        await produce(1)
        report = await consume(runtime, SpawnToPool("work", lambda event: never_ends))

    assert report.acked == 1


@durable(name="tests:never_ends")
async def never_ends() -> None:
    await asyncio.Event().wait()


async def test_a_jobs_record_tells_its_binding_and_what_it_replays(runtime: Runtime) -> None:
    [handle] = await produce(1)
    await runtime.service(DeadLetters).replay_event(handle.event_id, "t")

    first, again = [event.payload for event in await event_log_read("worker.triage")]

    assert (first["binding_key"], first["binding_version"]) == ("t@v1", 1)
    assert (first["replay_of_event_id"], again["replay_of_event_id"]) == (None, handle.event_id)


async def test_the_receipt_of_a_repeated_delivery_is_the_same_job(runtime: Runtime) -> None:
    [handle] = await produce(1)
    receipts = [
        e for e in await event_log_read(topics.CHANNEL_AUDIT) if e.kind == "channel_match_receipt"
    ]

    assert receipts[0].payload["handler_result"]["job_id"] == handle.result["job_id"]


async def test_a_failure_waits_for_the_claim_to_expire_unless_retries_are_asked_for(
    runtime: Runtime, clock: FakeClock
) -> None:
    tried: list[float] = []

    async def fail(event: TriggerEvent) -> None:
        tried.append(clock.monotonic())
        raise RuntimeError("no")

    await produce(1)
    first = await consume(runtime, fail)
    await clock.advance("61s")
    await consume(runtime, fail)

    assert (first.acked, first.deferred) == (0, 1)
    assert tried == [0, 61]


async def test_retries_that_are_asked_for_are_the_queues_and_end_in_the_dead_letters(
    runtime: Runtime, clock: FakeClock
) -> None:
    tried: list[float] = []

    async def fail(event: TriggerEvent) -> None:
        tried.append(clock.monotonic())
        raise RuntimeError("no")

    await produce(1)
    for _ in range(4):
        await consume(runtime, fail, retry={"max": 3, "backoff": "linear", "delay": "5s"})
        await clock.advance("5s")
    letters = await runtime.service(DeadLetters).listed()

    assert tried == [0, 5, 10]
    assert letters.entries[0]["error"] == "handler raised RuntimeError: no"
    assert (await worker_queue("triage").summary()).dead == 1


async def test_a_gate_that_does_not_let_a_job_in_gives_it_back_with_its_attempt(
    runtime: Runtime, clock: FakeClock
) -> None:
    done: list[Any] = []

    async def handler(event: TriggerEvent) -> None:
        done.append((clock.monotonic(), event.get("provider_payload.payload")))

    await produce(1, 2)
    options: dict[str, Any] = {"throttle": {"max": 1, "period": "1h"}}
    draining = asyncio.ensure_future(consume(runtime, handler, **options))
    await clock.advance("10s")
    await draining
    summary = await worker_queue("triage").summary()
    await clock.advance("1h")
    await consume(runtime, handler, **options)

    assert (summary.acked, summary.ready + summary.scheduled) == (1, 1)
    assert [payload for _, payload in done] == [1, 2]
    claim_records = [e.kind for e in await event_log_read("worker.triage.claims")]
    assert "job_released" in claim_records


@pytest.mark.parametrize("workers", [1, 3])
async def test_41_jobs_wait_in_the_queue_until_their_throttle_opens_and_the_drain_ends(
    runtime: Runtime, clock: FakeClock, workers: int
) -> None:
    done: list[float] = []

    async def handler(event: TriggerEvent) -> None:
        done.append(clock.monotonic())

    await produce(1, 2, 3, 4)
    options: dict[str, Any] = {"throttle": {"max": 1, "period": "1h"}}
    draining = asyncio.ensure_future(consume(runtime, handler, workers, **options))
    await clock.advance("30s")

    assert draining.done(), "nothing is ready, so there is nothing to drain"
    report = draining.result()
    assert (report.acked, report.deferred) == (1, 3)
    assert (report.summary.ready, report.summary.scheduled) == (0, 3)

    await clock.advance("1h")
    draining = asyncio.ensure_future(consume(runtime, handler, workers, **options))
    await clock.advance("30s")

    assert draining.done()
    assert len(done) == 2
    assert done[1] - done[0] >= 3600


async def test_41_a_debounce_that_is_longer_than_a_workers_patience_still_ends(
    runtime: Runtime, clock: FakeClock
) -> None:
    done: list[Any] = []

    async def handler(event: TriggerEvent) -> None:
        done.append(event.get("provider_payload.payload"))

    await produce(1, 2)
    draining = asyncio.ensure_future(consume(runtime, handler, 2, debounce={"period": "20s"}))
    await clock.advance("1m")

    assert draining.done()
    assert done == [2]
    assert draining.result().acked == 2, "the one that was overtaken is skipped"


async def test_a_singleton_in_flight_gives_the_next_job_back(
    runtime: Runtime, clock: FakeClock
) -> None:
    gate = asyncio.Event()
    done: list[Any] = []

    async def handler(event: TriggerEvent) -> None:
        await gate.wait()
        done.append(event.get("provider_payload.payload"))

    await produce(1, 2)
    first = asyncio.ensure_future(consume(runtime, handler, singleton=True))
    await clock.settle()
    second = await consume(runtime, handler, singleton=True)
    gate.set()
    await first
    await clock.advance("2s")
    await consume(runtime, handler, singleton=True)

    assert second.acked == 0
    assert done == [1, 2]


async def test_a_job_that_is_given_back_leaves_the_line_before_its_gate(
    runtime: Runtime, clock: FakeClock
) -> None:
    gate = asyncio.Event()

    async def handler(event: TriggerEvent) -> None:
        await gate.wait()

    await produce(1, 2)
    options = {"concurrency": {"max": 1}}
    draining = asyncio.ensure_future(consume(runtime, handler, 2, **options))
    await clock.advance("6s")

    marks = await marks_of(runtime)
    gate.set()
    await clock.advance("5s")
    await draining

    assert [bool(mark[4]) for mark in marks] == [True]


@pytest.mark.parametrize(
    "gates",
    [{"concurrency": 1}, {"singleton": True}, {"singleton": True, "concurrency": 1}],
    ids=["slot", "singleton", "both"],
)
async def test_a_job_that_is_cancelled_at_any_await_leaves_its_gates_open(
    storage_url: str, gates: dict[str, Any]
) -> None:
    job = Job(1, "triage", an_event().as_dict(), "normal", None, "t", "t@v1", {}, 0, 1, 5, None)
    async with Runtime(storage=storage_url) as runtime:
        runner = runner_of(runtime, lambda event: asyncio.sleep(0), **gates)

        async def is_free(run: Run) -> None:
            assert await marks_of(runtime) == [], run

        assert await sweep(lambda: runner(job), is_free, leftovers=3) > 4


@pytest.mark.parametrize("payload", [{"no": "event"}, 5, None])
async def test_a_job_that_holds_no_event_is_dead_at_once(runtime: Runtime, payload: Any) -> None:
    await worker_queue("triage").enqueue(payload, trigger_id="t")

    await consume(runtime, lambda event: 1)

    assert (await worker_queue("triage").summary()).dead == 1
