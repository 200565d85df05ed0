"""Jobs as an application sees them, on every engine: states, results, cancel, retry, pause."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

import harn
from harn import (
    ClaimLost,
    DeadlineExceeded,
    InvalidOption,
    JobCancelled,
    JobError,
    JobFailed,
    NewJob,
    Runtime,
    SchedulerPolicy,
    WorkerQueue,
    worker_queue,
)
from harn.context import current_frame_var
from harn.errors import HarnError, StorageCorrupt
from harn.storage import MAX_PAYLOAD, Store, log
from harn.storage.log.rebuild import compare
from harn.storage.queue import JobIndex, job_control, stored_jobs
from harn.testing import FakeClock
from harn.workers.job_results import JobResults
from tests.sweep import Run, sweep


@pytest.fixture
async def store_runtime(storage_url: str, clock: FakeClock) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=clock) as opened:
        yield opened


@pytest.fixture
async def queue(store_runtime: Runtime) -> WorkerQueue:
    return worker_queue("triage")


def double(job: harn.Job) -> Any:
    if job.payload == "bad":
        raise ValueError("this one is bad")
    return job.payload * 2


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def statuses(queue: WorkerQueue) -> list[str]:
    return [job.status for job in await queue.jobs()]


# -- states --------------------------------------------------------------------------------------


async def test_a_jobs_state_follows_it_through_its_life(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    receipt = await queue.enqueue(
        {"pr": 1}, tenant_id="acme", priority="high", headers={"x": "y"}, dedupe_key="d", cost=2.5
    )

    ready = await receipt.state()
    claim = await queue.claim_next("worker-a", ttl="1m")
    assert claim is not None
    claimed = await receipt.state()
    await clock.advance("2m")
    expired = await receipt.state()
    await claim.ack({"ok": True})
    acked = await queue.job(receipt.job_id)

    assert (ready.status, ready.payload, ready.tenant_id) == ("ready", {"pr": 1}, "acme")
    assert (ready.priority, ready.headers, ready.dedupe_key) == ("high", {"x": "y"}, "d")
    assert (ready.cost, ready.attempts, ready.consumer_id, ready.outcome) == (2.5, 0, None, None)
    assert (claimed.status, claimed.attempts, claimed.consumer_id) == ("in_flight", 1, "worker-a")
    assert claimed.claim_expires_at_ms == claim.expires_at_ms
    assert (expired.status, expired.claim_expires_at_ms) == ("ready", None)
    assert acked is not None
    assert (acked.status, acked.outcome, acked.error) == ("acked", {"ok": True}, None)
    assert acked.settled_at_ms is not None
    assert acked.as_dict()["status"] == "acked"


async def test_a_failed_attempt_shows_its_error_until_the_next_one_ends(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    receipt = await queue.enqueue("bad", max_attempts=2)

    await harn.drain("triage", double, claim_ttl="1m")
    failed = await receipt.state()
    await clock.advance("2m")
    await harn.drain("triage", double, claim_ttl="1m")
    dead = await receipt.state()

    assert failed.error == "ValueError: this one is bad"
    assert failed.traceback is not None and "in double" in failed.traceback
    assert (dead.status, dead.attempts, dead.error) == ("dead", 2, "ValueError: this one is bad")
    assert dead.traceback is not None and "in double" in dead.traceback


async def test_a_job_that_dies_of_expired_claims_says_so(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    receipt = await queue.enqueue(1, max_attempts=1)
    await queue.claim_next("worker-a", ttl="1m")
    await clock.advance("2m")
    await queue.summary()

    state = await receipt.state()

    assert state.status == "dead"
    assert state.error is not None and "the claim expired" in state.error


async def test_an_outcome_that_is_not_json_is_text_and_marked(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue(1)

    await harn.drain("triage", lambda job: {1, 2})
    state = await receipt.state()

    assert (state.outcome, state.outcome_omitted) == ("{1, 2}", True)
    assert await receipt.result() == "{1, 2}"


async def test_outcomes_belong_to_their_jobs_when_settled_together(queue: WorkerQueue) -> None:
    receipts = await queue.enqueue_many([NewJob(n, max_attempts=1) for n in range(30)])
    claims = await queue.claim_many("w", 30)
    for claim in claims[::7]:
        await claim.release()

    async def settle(claim: harn.Claim) -> None:
        number = claim.job.payload
        await (claim.fail(f"no {number}") if number % 5 == 0 else claim.ack({"n": number}))

    await asyncio.gather(*[settle(claim) for claim in claims])
    states = [await receipt.state() for receipt in receipts]

    for number, state in enumerate(states):
        if number % 7 == 0:
            assert (state.status, state.outcome, state.error) == ("ready", None, None)
        elif number % 5 == 0:
            assert (state.status, state.error) == ("dead", f"no {number}")
        else:
            assert (state.status, state.outcome) == ("acked", {"n": number})


# -- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", ["tenant", "binding"])
async def test_jobs_are_listed_by_status_tenant_and_page(
    queue: WorkerQueue, dimension: str
) -> None:
    policy = SchedulerPolicy(strategy="drr", fairness_key=dimension)  # type: ignore[arg-type]
    fair = worker_queue("triage", policy)
    await fair.enqueue_many(
        [
            NewJob(0, tenant_id="a"),
            NewJob(1, tenant_id="b", priority="low"),
            NewJob(2, tenant_id="a", not_before="1h"),
            NewJob(3),
            NewJob(4, tenant_id="a", priority="high", max_attempts=1),
        ]
    )
    claims = {claim.job.id: claim for claim in await fair.claim_many("w", 10)}
    await claims[5].fail("no")
    await claims[1].ack()
    await claims[4].release()

    async def ids(**filters: Any) -> list[int]:
        return [job.id for job in await queue.jobs(**filters)]

    assert await ids() == [1, 2, 3, 4, 5]
    assert await ids(after=2, limit=2) == [3, 4]
    assert await ids(status="dead") == [5] == await ids(status="dead", tenant_id="a")
    assert await ids(status="acked") == [1]
    assert await ids(status="in_flight") == [2] == await ids(status="in_flight", tenant_id="b")
    assert await ids(status="scheduled") == [3]
    assert await ids(status="ready") == [4]
    assert await ids(status="ready", tenant_id="a") == []
    assert await ids(tenant_id="a") == [1, 3, 5]
    assert await ids(tenant_id="b") == [2]
    assert await ids(tenant_id="a", limit=2) == [1, 3]
    assert await ids(tenant_id="nobody") == []


async def test_unknown_and_foreign_ids_are_none_or_false(queue: WorkerQueue) -> None:
    other = worker_queue("other")
    await other.enqueue_many([1, 2])
    await queue.enqueue(1)

    assert await queue.job(2) is None
    assert await queue.job(0) is None and await queue.job(-1) is None
    assert await queue.job(1 << 70) is None
    assert await queue.jobs(after=1 << 63) == [] == await queue.jobs(after=1 << 70)
    assert await queue.job("ticket_none") is None
    assert await queue.job("ticket_\x00") is None and await queue.job("ticket_\ud800") is None
    assert await queue.cancel(2) is False and await queue.retry(2) is False
    assert await worker_queue("never-used").job(1) is None
    assert await worker_queue("never-used").jobs() == []
    assert await worker_queue("never-used").resume() is False


@pytest.mark.parametrize("id", ["1", True, None, 1.0])
async def test_what_is_no_id_is_refused(queue: WorkerQueue, id: Any) -> None:
    with pytest.raises(InvalidOption, match="job_id"):
        await queue.job(id)


@pytest.mark.parametrize("id", ["1", True, None, 1.0])
async def test_a_receipt_made_of_what_is_no_id_waits_for_nothing(
    queue: WorkerQueue, id: Any
) -> None:
    await queue.enqueue(1)
    real = await queue.enqueue(2)
    made = msgspec.structs.replace(real, job_id=id)

    for ask in (made.result, made.state, made.cancel):
        with pytest.raises(InvalidOption, match="job_id"):
            await ask()


async def test_bad_filters_are_refused_by_name(queue: WorkerQueue) -> None:
    with pytest.raises(InvalidOption, match="did you mean 'acked'"):
        await queue.jobs(status="aked")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="limit"):
        await queue.jobs(limit=0)
    with pytest.raises(InvalidOption, match="after"):
        await queue.jobs(after=-1)
    with pytest.raises(InvalidOption, match="cost"):
        await queue.enqueue(1, cost=float("nan"))
    with pytest.raises(InvalidOption, match="cost"):
        await queue.enqueue(1, cost=-1)


@pytest.mark.parametrize("reason", [5, "\ud800"])
async def test_a_reason_is_text(queue: WorkerQueue, reason: Any) -> None:
    receipt = await queue.enqueue(1)
    claim = await queue.claim_next("w")
    assert claim is not None
    calls: list[Callable[..., Any]] = [receipt.cancel, queue.pause, queue.purge, claim.release]

    for call in calls:
        with pytest.raises(InvalidOption, match="reason"):
            await call(reason=reason)

    assert await claim.renew()


# -- results -------------------------------------------------------------------------------------


async def test_a_result_is_awaited_before_and_after_the_job_is_done(queue: WorkerQueue) -> None:
    receipts = await queue.enqueue_many([1, 2, 3])
    waiting = [harn.spawn(receipt.result) for receipt in receipts]
    await asyncio.sleep(0)

    await harn.drain("triage", double, concurrency=3)

    assert [await each for each in waiting] == [2, 4, 6]
    assert await receipts[0].result() == 2


async def test_a_dead_jobs_result_raises_what_it_died_of(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue("bad", max_attempts=1)
    await harn.drain("triage", double)

    with pytest.raises(JobFailed, match="job 1 of queue 'triage' failed after 1 attempt") as failed:
        await receipt.result()

    assert failed.value.error == "ValueError: this one is bad"
    assert failed.value.traceback is not None and "in double" in failed.value.traceback
    assert failed.value.job is not None and failed.value.job.status == "dead"


async def test_a_result_that_takes_too_long_is_a_deadline(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    receipt = await queue.enqueue(1)
    waiting = harn.spawn(lambda: receipt.result(timeout="5s"))

    await clock.advance("6s")

    with pytest.raises(DeadlineExceeded, match="job 1 of queue 'triage' was not settled within 5s"):
        await waiting


@pytest.mark.filterwarnings("error")
async def test_a_timeout_that_is_no_duration_is_refused_by_name(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue(1)

    with pytest.raises(InvalidOption, match="timeout='soon'"):
        await receipt.result(timeout="soon")
    gc.collect()  # a wait that was made and never begun would be told here


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets how many jobs each look at the store, or read of jobs, is about."""
    counts: list[int] = []
    for name in ("settled_among", "read_jobs"):
        monkeypatch.setattr(
            stored_jobs, name, partial(_counted, getattr(stored_jobs, name), counts)
        )
    return counts


def _counted(look: Any, counts: list[int], queue: str, ids: Any) -> Any:
    counts.append(len(ids))
    return look(queue, ids)


async def test_results_that_are_awaited_together_are_read_together(
    queue: WorkerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await queue.enqueue_many(range(50))
    await harn.drain("triage", double)

    looks = count_looks(monkeypatch)
    results = await asyncio.gather(*(receipt.result() for receipt in receipts))

    assert results == [n * 2 for n in range(50)]
    assert looks[0] == 50
    on_files = queue.store.place.engine == "file"  # which keep responses apart from the index
    assert looks[1:] == ([50] if on_files else [])


async def test_results_of_jobs_that_this_process_acks_come_without_another_look(
    queue: WorkerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await queue.enqueue_many(range(50))
    looks = count_looks(monkeypatch)
    waiting = [harn.spawn(receipt.result) for receipt in receipts]
    await until(lambda: looks == [50])
    await queue.job(receipts[0].job_id)  # on the same thread: behind the look

    await harn.drain("triage", double, concurrency=3)

    assert [await each for each in waiting] == [n * 2 for n in range(50)]
    if queue.store.place.engine != "postgresql":  # which does not tell the offsets of its writes
        assert looks == [50, 1]


async def test_a_watcher_reads_nothing_for_operations_that_tell_what_they_wrote(
    queue: WorkerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(job: harn.Job) -> None:
        pass

    heads: list[str] = []
    head = log.head

    def counted(topic: str) -> Any:
        heads.append(topic)
        return head(topic)

    monkeypatch.setattr(log, "head", counted)
    receipts = await queue.enqueue_many(range(200))
    waiting = [harn.spawn(receipt.result) for receipt in receipts]
    results = queue.runtime.service(JobResults)
    await until(lambda: bool(results._awaited) and results._awaited["triage"].watcher is not None)

    await harn.drain("triage", nothing, concurrency=10)  # twenty operations

    assert [await each for each in waiting] == [None] * 200
    if queue.store.place.engine != "postgresql":  # which does not tell the offsets of its writes
        assert len(heads) < 10


async def test_callers_that_wait_for_one_job_get_outcomes_of_their_own(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue([1])
    first, second = harn.spawn(receipt.result), harn.spawn(receipt.result)
    await asyncio.sleep(0)
    await harn.drain("triage", lambda job: job.payload)

    (await first).append(2)

    assert await second == [1]
    assert await receipt.result() == [1]


async def test_a_job_that_cannot_be_read_spoils_no_other_result(
    queue: WorkerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts = await queue.enqueue_many([1, 2, 3])
    await harn.drain("triage", double)

    def damaged(look: Any, name: str, ids: Any) -> Any:
        if 2 in ids:
            raise StorageCorrupt("job 2 cannot be read")
        return look(name, ids)

    for name in ("settled_among", "read_jobs"):
        monkeypatch.setattr(stored_jobs, name, partial(damaged, getattr(stored_jobs, name)))
    results = [receipt.result() for receipt in receipts]
    first, second, third = await asyncio.gather(*results, return_exceptions=True)

    assert (first, third) == (2, 6)
    assert isinstance(second, StorageCorrupt)


async def test_the_result_of_a_purged_or_trimmed_job_says_so(queue: WorkerQueue) -> None:
    purged = await queue.enqueue(1)
    waiting = harn.spawn(purged.result)
    await queue.purge()
    with pytest.raises(JobCancelled, match="was purged"):
        await waiting

    done = await queue.enqueue(2)
    await harn.drain("triage", double)
    await harn.current_runtime().event_log.trim("worker.triage", keep=0)

    assert await queue.job(done.job_id) is None
    with pytest.raises(JobError, match="its record trimmed"):
        await done.result()
    with pytest.raises(JobError, match="its record trimmed"):
        await done.state()


@pytest.mark.parametrize("is_watched", [False, True])
async def test_a_caller_outside_the_runtime_returns_when_it_is_closed(
    storage_url: str, is_watched: bool
) -> None:
    async with Runtime(storage=storage_url) as runtime:
        receipt = await worker_queue("triage").enqueue(1)
        waiting = [asyncio.create_task(receipt.result()) for _ in range(2)]
        await asyncio.sleep(0)
        if is_watched:
            awaited = runtime.service(JobResults)._awaited["triage"]
            await until(lambda: awaited.watcher is not None)

    for each in waiting:
        with pytest.raises(HarnError, match=r"closed before job \d+ of queue 'triage' was settled"):
            await asyncio.wait_for(each, 10)


async def test_a_result_reaches_another_runtime_of_the_same_store(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as producer:
        receipt = await worker_queue("triage").enqueue(21)
        waiting = producer.loop.create_task(receipt.result())
        await asyncio.sleep(0)
        async with Runtime(storage=lasting_url) as consumer:
            token = current_frame_var.set(consumer.frame)
            await harn.drain("triage", double)
            current_frame_var.reset(token)

        assert await waiting == 42


async def test_a_result_of_another_runtime_comes_while_this_one_enqueues_on_and_on(
    lasting_url: str,
) -> None:
    async with Runtime(storage=lasting_url) as producer, Runtime(storage=lasting_url) as consumer:
        token = current_frame_var.set(producer.frame)
        queue = worker_queue("triage")
        receipt = await queue.enqueue(21)
        waiting = producer.loop.create_task(receipt.result())
        results = producer.service(JobResults)
        await until(lambda: queue.name in results._awaited)
        await until(lambda: results._awaited[queue.name].watcher is not None)

        async def enqueue_on() -> None:  # two of them: an operation is always about to begin
            while not waiting.done():
                await queue.enqueue(0)

        busy = [producer.loop.create_task(enqueue_on()) for _ in range(2)]
        current_frame_var.reset(token)
        current_frame_var.set(consumer.frame)
        claim = await worker_queue("triage").claim_next("another")
        assert claim is not None
        await claim.ack(42)

        assert await asyncio.wait_for(waiting, 30) == 42
        await asyncio.gather(*busy)


async def test_a_job_that_is_settled_while_it_is_read_is_not_missed(
    queue: WorkerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, receipt = await queue.enqueue_many([1, 2])
    waiting = harn.spawn(other.result)
    await asyncio.sleep(0)
    results = queue.runtime.service(JobResults)
    await until(lambda: results._awaited["triage"].watcher is not None)
    looked = results._looked
    answers: list[tuple[Any, ...]] = []
    monkeypatch.setattr(results, "_looked", lambda *answer: answers.append(answer))
    result = harn.spawn(receipt.result)
    await until(lambda: any(receipt.job_id in answer[1] for answer in answers))

    await receipt.cancel("meanwhile")
    for _ in range(200):  # the watcher looks
        await asyncio.sleep(0)
    for answer in answers:  # which found it ready
        looked(*answer)

    with pytest.raises(JobCancelled, match="meanwhile"):
        await asyncio.wait_for(result, 5)
    waiting.cancel()


async def test_cancelling_a_wait_for_a_result_anywhere_leaves_nothing(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue(1)
    settled = await queue.enqueue(2)
    await queue.cancel(settled.job_id)

    async def case() -> None:
        with pytest.raises(JobCancelled):
            await settled.result()
        await receipt.state()
        async with harn.scope():
            waiting = harn.spawn(receipt.result)
            await asyncio.sleep(0)
            waiting.cancel()

    async def check(run: Run) -> None:
        assert (await receipt.state()).status == "ready"

    assert await sweep(case, check, leftovers=3) > 2


# -- cancel --------------------------------------------------------------------------------------


async def test_a_waiting_job_that_is_cancelled_is_never_given_out(queue: WorkerQueue) -> None:
    first, later, third = await queue.enqueue_many([1, NewJob(2, not_before="1h"), 3])

    assert await first.cancel("not wanted") is True
    assert await queue.cancel(later.job_id) is True
    assert await first.cancel() is False
    report = await harn.drain("triage", double)

    assert report.drained == 1
    assert (await first.state()).error == "not wanted"
    assert await statuses(queue) == ["cancelled", "cancelled", "acked"]
    summary = await queue.summary()
    assert (summary.cancelled, summary.ready, summary.scheduled, summary.acked) == (2, 0, 0, 1)
    assert await third.cancel() is False
    with pytest.raises(JobCancelled, match="was cancelled: not wanted"):
        await first.result()


@pytest.mark.parametrize("action", ["ack", "fail", "release", "renew"])
async def test_the_claim_on_a_cancelled_job_is_lost(queue: WorkerQueue, action: str) -> None:
    receipt = await queue.enqueue(1)
    claim = await queue.claim_next("w")
    assert claim is not None

    assert await receipt.cancel()

    with pytest.raises(ClaimLost, match="the job was cancelled"):
        await (claim.fail("x") if action == "fail" else getattr(claim, action)())
    assert (await receipt.state()).status == "cancelled"
    assert (await queue.summary()).in_flight == 0


async def test_a_cancelled_job_makes_room_under_the_cap(queue: WorkerQueue) -> None:
    capped = worker_queue("triage", SchedulerPolicy(strategy="drr", max_concurrent_per_key=1))
    await capped.enqueue_many([NewJob(n, tenant_id="a") for n in range(2)])
    claim = await capped.claim_next("w")
    assert claim is not None and await capped.claim_next("w") is None

    await capped.cancel(claim.job.id)

    assert await capped.claim_next("w") is not None


# -- retry ---------------------------------------------------------------------------------------


async def test_a_dead_job_is_ready_again_with_all_its_attempts(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue("bad", max_attempts=1)
    assert await queue.retry(receipt.job_id) is False
    await harn.drain("triage", double)

    assert await queue.retry(receipt.job_id) is True
    assert await queue.retry(receipt.job_id) is False
    again = await receipt.state()
    report = await harn.drain("triage", lambda job: "mended")

    assert (again.status, again.attempts, again.error) == ("ready", 0, None)
    assert report.acked == 1
    assert await receipt.result() == "mended"
    summary = await queue.summary()
    assert (summary.dead, summary.acked) == (0, 1)


async def test_a_dead_job_with_the_largest_payload_can_be_retried(runtime: Runtime) -> None:
    queue = worker_queue("triage")
    receipt = await queue.enqueue("x" * (MAX_PAYLOAD - 300), max_attempts=1)
    claim = await queue.claim_next("me")
    assert claim is not None
    await claim.fail("boom" * 100)

    assert await queue.retry(receipt.job_id)

    _, entry, closed = await harn.event_log_read("trigger.dlq")
    assert (entry.payload["state"], closed.payload["state"]) == ("pending", "resolved")


async def test_a_job_with_the_largest_outcome_is_exported_and_imported(runtime: Runtime) -> None:
    largest = "x" * (MAX_PAYLOAD - 2)
    queue = worker_queue("triage")
    await queue.enqueue(1)
    claim = await queue.claim_next("me")
    assert claim is not None
    await claim.ack(largest)

    lines = [line async for line in log.export(runtime.service(Store))]
    async with Runtime() as other:
        importer = log.Importer(other.service(Store))
        await importer.feed(lines)
        await importer.finish()
        await other.service(Store).run(log.rebuild)
        state = await worker_queue("triage").job(1)

    assert state is not None and state.outcome == largest


async def test_a_retry_closes_the_jobs_dead_letter(queue: WorkerQueue) -> None:
    await queue.enqueue("bad", max_attempts=1)
    await harn.drain("triage", double)

    await queue.retry(1)
    entries = [
        event.payload
        for event in await harn.event_log_read("trigger.dlq")
        if event.kind == "dlq_entry"
    ]

    assert [entry["state"] for entry in entries] == ["pending", "resolved"]
    assert entries[0]["id"] == entries[1]["id"]
    assert entries[1]["retry_history"][-1]["status"] == "retried"


# -- pause ---------------------------------------------------------------------------------------


async def test_a_paused_queue_accepts_jobs_and_gives_none_out(queue: WorkerQueue) -> None:
    await queue.enqueue_many([1, 2])
    held = await queue.claim_next("w")
    assert held is not None

    assert await queue.pause(reason="provider is down") is True
    assert await queue.pause() is False
    await queue.enqueue(3)
    summary = await queue.summary()

    assert await queue.claim_next("w") is None
    assert (await harn.drain("triage", double)).drained == 0
    assert (summary.paused, summary.paused_keys, summary.ready) == (True, (), 2)
    assert await held.ack() is True

    assert await queue.resume() is True
    assert await queue.resume() is False
    assert (await harn.drain("triage", double)).drained == 2


POLICIES = [
    SchedulerPolicy(),
    SchedulerPolicy(strategy="drr"),
    SchedulerPolicy(strategy="drr", fairness_key="binding"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=["fifo", "by tenant", "by binding"])
async def test_a_paused_tenants_jobs_wait_and_the_others_go_on(
    queue: WorkerQueue, policy: SchedulerPolicy, clock: FakeClock
) -> None:
    queue = worker_queue("triage", policy)
    await queue.enqueue_many(
        [
            NewJob(f"{tenant}{n}", tenant_id=tenant, priority=priority)
            for n in range(2)
            for tenant in ("a", "b")
            for priority in ("low", "high")
        ]
    )
    [held] = await queue.claim_many("w", 1, ttl="1m")
    assert held.job.tenant_id == "a"

    assert await queue.pause(tenant_id="a", reason="over budget") is True
    assert await queue.pause(tenant_id="a") is False
    await queue.enqueue("late", tenant_id="a")
    await queue.enqueue("later", tenant_id="a", not_before="1m")
    summary = await queue.summary()
    taken = [claim.job.tenant_id for claim in await queue.claim_many("w", 20)]
    await held.release()
    await clock.advance("2m")

    assert taken == ["b"] * 4
    assert (summary.ready, summary.paused, summary.paused_keys) == (8, False, ("a",))
    assert await queue.claim_many("w", 20) == []
    assert {job.status for job in await queue.jobs(tenant_id="a")} == {"ready"}
    assert (await queue.summary()).ready == 6

    assert await queue.resume(tenant_id="b") is False
    assert await queue.resume(tenant_id="a") is True
    assert [claim.job.tenant_id for claim in await queue.claim_many("w", 20)] == ["a"] * 6


async def test_a_pause_of_many_jobs_holds_at_once_and_ends_whole(queue: WorkerQueue) -> None:
    await queue.enqueue_many([NewJob(n, tenant_id="a") for n in range(2_500)])
    await queue.enqueue(0, tenant_id="b")

    await queue.pause(tenant_id="a")
    taken = await queue.claim_many("w", 10)
    before = await queue.summary()
    await queue.resume(tenant_id="a")
    back = await queue.claim_many("w", 1000)

    assert [claim.job.tenant_id for claim in taken] == ["b"]
    assert before.ready == 2_500
    assert [claim.job.payload for claim in back] == list(range(1000))
    assert (await queue.summary()).ready == 1_500


@pytest.mark.parametrize("policy", POLICIES, ids=["fifo", "by tenant", "by binding"])
async def test_the_next_claim_carries_on_a_pause_that_was_cut_short(
    queue: WorkerQueue, policy: SchedulerPolicy
) -> None:
    queue = worker_queue("triage", policy)
    await queue.enqueue_many([NewJob(n, tenant_id="ab"[n % 2]) for n in range(6)])
    [held] = await queue.claim_many("w", 1)  # the queue knows its policy now
    await held.release()
    # As when the process dies after the first commit of `pause`.
    await queue.store.run(lambda: job_control.pause_queue("triage", "a", "me", None))

    taken = []
    for _ in range(8):
        taken += [claim.job.tenant_id for claim in await queue.claim_many("w", 1)]
    run = queue.store.run

    assert taken.count("a") <= 2  # before all of them were parked, a batch with each claim
    assert taken.count("b") == 3
    assert await run(lambda: compare([JobIndex()])) == []


async def test_a_purge_takes_a_paused_tenants_jobs_too(queue: WorkerQueue) -> None:
    await queue.enqueue(1, tenant_id="a")
    await queue.pause(tenant_id="a")

    assert await queue.purge() == 1
    assert await queue.resume(tenant_id="a") is True
    assert (await queue.summary()).ready == 0
