"""One suite, every engine: fencing, attempts, dead letters, dedupe, not-before, purge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from harn import (
    ClaimLost,
    InvalidOption,
    NewJob,
    QueueSummary,
    Runtime,
    SchedulerPolicy,
    WorkerQueue,
    event_log_read,
    worker_queue,
    worker_queues,
)
from harn.context import current_frame_var
from harn.storage import Store
from harn.storage.log import compare
from harn.testing import FakeClock

HOUR = 3_600_000


@pytest.fixture
async def store_runtime(storage_url: str, clock: FakeClock) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=clock) as opened:
        yield opened


@pytest.fixture
async def queue(store_runtime: Runtime) -> WorkerQueue:
    return worker_queue("triage")


async def kinds(topic: str) -> list[str]:
    return [event.kind for event in await event_log_read(topic)]


async def test_a_job_goes_from_enqueue_to_ack_with_its_records(queue: WorkerQueue) -> None:
    receipt = await queue.enqueue(
        {"pr": 1984},
        trigger_id="review",
        binding_key="review@v1",
        tenant_id="acme",
        priority="high",
        headers={"x": "y"},
    )
    claim = await queue.claim_next("worker-a")
    assert claim is not None
    acked = await claim.ack({"ok": True})

    assert (receipt.job_id, receipt.duplicate) == (1, False)
    assert claim.job.payload == {"pr": 1984}
    assert (claim.job.tenant_id, claim.job.headers, claim.attempt) == ("acme", {"x": "y"}, 1)
    assert acked is True
    assert await kinds("worker.queues") == ["queue_seen"]
    assert await kinds("worker.triage.claims") == ["job_claimed", "job_acked"]
    [job] = await event_log_read("worker.triage")
    assert job.payload["event"] == {"pr": 1984}
    assert job.headers["trigger_id"] == "review"
    [response] = await event_log_read("worker.triage.responses")
    assert response.payload["outcome"] == {"ok": True}
    assert response.payload["consumer_id"] == "worker-a"
    assert (await queue.summary()).as_dict() == {
        "queue": "triage",
        "ready": 0,
        "scheduled": 0,
        "in_flight": 0,
        "acked": 1,
        "purged": 0,
        "dead": 0,
        "responses": 1,
        "oldest_unclaimed_age_ms": None,
        "cancelled": 0,
        "paused": False,
        "paused_keys": (),
    }


@pytest.mark.parametrize(
    ("job", "names"),
    [
        (NewJob(1), {}),
        (NewJob({"id": 7}), {}),
        (NewJob({"id": "e1"}), {"event_id": "e1"}),
        (NewJob(1, trigger_id="t"), {"trigger_id": "t"}),
        (NewJob(1, binding_key="b"), {"binding_key": "b"}),
        (
            NewJob({"id": "e1"}, trigger_id="t", binding_key="b", priority="high"),
            {"trigger_id": "t", "binding_key": "b", "event_id": "e1"},
        ),
    ],
)
async def test_the_headers_of_a_record_say_what_the_job_names(
    queue: WorkerQueue, job: NewJob, names: dict[str, str]
) -> None:
    await queue.enqueue_many([NewJob("before"), job])

    *_, record = await event_log_read(queue.topics.jobs)

    assert record.headers == {"queue": "triage", "priority": job.priority, **names}


async def test_enqueue_many_is_all_or_none(queue: WorkerQueue) -> None:
    with pytest.raises(InvalidOption, match="payload"):
        await queue.enqueue_many([1, 2, NewJob(float("nan"))])

    assert await worker_queues() == []


async def test_C5_a_silent_consumer_loses_its_claim(queue: WorkerQueue, clock: FakeClock) -> None:
    await queue.enqueue("job")
    first = await queue.claim_next("a", ttl="5m")
    assert await queue.claim_next("b") is None

    await clock.advance("5m")
    second = await queue.claim_next("b")

    assert first is not None and second is not None
    assert second.job.id == first.job.id
    assert second.attempt == 2


@pytest.mark.parametrize("action", ["renew", "ack", "fail", "release"])
async def test_A2_a_superseded_claim_can_do_nothing(
    queue: WorkerQueue, clock: FakeClock, action: str
) -> None:
    await queue.enqueue("job")
    old = await queue.claim_next("a", ttl="1m")
    await clock.advance("2m")
    new = await queue.claim_next("b", ttl="1m")
    assert old is not None and new is not None
    before = await kinds("worker.triage.claims")

    with pytest.raises(ClaimLost):
        await (old.fail("late") if action == "fail" else getattr(old, action)())

    assert await kinds("worker.triage.claims") == before
    assert await new.ack() is True
    with pytest.raises(ClaimLost):
        await old.ack()


@pytest.mark.parametrize("action", ["renew", "ack", "fail", "release"])
async def test_A3_an_expired_claim_that_was_not_taken_over_may_still_act(
    queue: WorkerQueue, clock: FakeClock, action: str
) -> None:
    await queue.enqueue("job")
    claim = await queue.claim_next("a", ttl="1m")
    assert claim is not None
    await clock.advance("2m")
    assert (await queue.summary()).ready == 1

    done = await (claim.fail("late") if action == "fail" else getattr(claim, action)())

    summary = await queue.summary()
    assert done is True
    expected = {"renew": (0, 1, 0), "ack": (0, 0, 1), "fail": (1, 0, 0), "release": (1, 0, 0)}
    assert (summary.ready, summary.in_flight, summary.acked) == expected[action]


async def test_A1_a_second_call_on_a_settled_claim_is_false_and_changes_nothing(
    queue: WorkerQueue,
) -> None:
    await queue.enqueue_many(["a", "b", "c"])
    acked, failed, released = await queue.claim_many("w", 3)
    await acked.ack()
    await failed.fail("boom")
    await released.release()
    before = await kinds("worker.triage.claims")

    again = [
        await action
        for claim in (acked, failed, released)
        for action in (claim.ack(), claim.renew(), claim.fail("x"), claim.release())
    ]

    assert again == [False] * 12
    assert await kinds("worker.triage.claims") == before


async def test_a_failed_job_waits_for_its_claim_to_expire(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    await queue.enqueue("job")
    claim = await queue.claim_next("a", ttl="5m")
    assert claim is not None
    await claim.fail(ValueError("boom"))

    held = await queue.summary()
    early = await queue.claim_next("b")
    await clock.advance("5m")
    late = await queue.claim_next("b")

    assert (held.in_flight, held.ready) == (1, 0)
    assert early is None
    assert late is not None and late.attempt == 2
    [response] = await event_log_read("worker.triage.responses")
    assert response.payload["error"] == "ValueError: boom"


async def test_a_failure_with_a_delay_is_scheduled(queue: WorkerQueue, clock: FakeClock) -> None:
    await queue.enqueue("job")
    claim = await queue.claim_next("a")
    assert claim is not None

    await claim.fail("boom", delay="30s")

    assert (await queue.summary()).scheduled == 1
    await clock.advance("30s")
    assert (await queue.claim_next("b")) is not None


async def test_C9_a_job_that_kills_its_workers_is_dead_after_its_attempts(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    await queue.enqueue({"id": "evt"}, trigger_id="review", max_attempts=2)
    for _ in range(2):
        assert await queue.claim_next("doomed", ttl="1m") is not None
        await clock.advance("1m")

    nothing = await queue.claim_next("w")

    summary = await queue.summary()
    assert nothing is None
    assert (summary.dead, summary.ready, summary.in_flight) == (1, 0, 0)
    moved, entry = await event_log_read("trigger.dlq")
    assert (moved.kind, entry.kind) == ("dlq_moved", "dlq_entry")
    assert moved.payload["attempt_count"] == 2
    assert moved.payload["event"] == {"id": "evt"}
    assert entry.payload["state"] == "pending"
    assert entry.payload["id"].startswith("dlq_")
    assert [each["status"] for each in entry.payload["retry_history"]] == ["expired", "expired"]


async def test_the_last_failure_is_fatal_at_once_and_the_claim_knows(queue: WorkerQueue) -> None:
    await queue.enqueue("job", max_attempts=1)
    claim = await queue.claim_next("w")
    assert claim is not None

    assert await claim.fail("boom") is True

    assert (await queue.summary()).dead == 1
    assert await claim.ack() is False
    [moved, _] = await event_log_read("trigger.dlq")
    assert moved.payload["final_error"] == "boom"


async def test_release_gives_the_attempt_back(queue: WorkerQueue, clock: FakeClock) -> None:
    await queue.enqueue("job", max_attempts=1)
    for _ in range(3):
        claim = await queue.claim_next("w")
        assert claim is not None and claim.attempt == 1
        assert await claim.release("not now", delay="1m")
        assert await queue.claim_next("w") is None
        await clock.advance("1m")

    assert (await queue.summary()).ready == 1


async def test_a_scheduled_job_becomes_ready_when_its_time_comes(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    at = datetime.fromtimestamp((clock.now_ms() + HOUR) / 1000, UTC)
    await queue.enqueue("later", not_before=at)
    await queue.enqueue("soon", not_before="1m")

    assert (await queue.summary()).scheduled == 2
    await clock.advance("1m")
    soon = await queue.claim_next("w")
    assert soon is not None and soon.job.payload == "soon"
    assert await queue.claim_next("w") is None
    await clock.advance("59m")
    later = await queue.claim_next("w")
    assert later is not None and later.job.payload == "later"


async def test_a_dedupe_key_answers_with_the_first_job(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    first = await queue.enqueue(1, dedupe_key="k", tenant_id="a")
    same = await queue.enqueue(2, dedupe_key="k", tenant_id="a")
    other = await queue.enqueue(3, dedupe_key="k", tenant_id="b")
    without = await queue.enqueue(4, dedupe_key="k")
    batch = await queue.enqueue_many([NewJob(5, dedupe_key="n"), NewJob(6, dedupe_key="n")])
    for claim in await queue.claim_many("w", 9):
        await claim.ack()
    await clock.advance("23h")
    kept = await queue.enqueue(7, dedupe_key="k", tenant_id="a")
    await clock.advance("2h")
    gone = await queue.enqueue(8, dedupe_key="k", tenant_id="a")

    assert (same.job_id, same.duplicate) == (first.job_id, True)
    assert not other.duplicate and not without.duplicate
    assert [each.duplicate for each in batch] == [False, True]
    assert batch[0].job_id == batch[1].job_id
    assert (kept.job_id, kept.duplicate) == (first.job_id, True)
    assert gone.duplicate is False


async def test_a_dedupe_key_is_free_at_the_end_of_its_window_and_not_before(
    queue: WorkerQueue, clock: FakeClock
) -> None:
    first = await queue.enqueue(1, dedupe_key="k")
    claim = await queue.claim_next("w")
    assert claim is not None
    await claim.ack()

    await clock.advance(milliseconds=24 * HOUR - 1)
    last = await queue.enqueue(2, dedupe_key="k")
    await clock.advance("1ms")
    free = await queue.enqueue(3, dedupe_key="k")

    assert (last.job_id, last.duplicate) == (first.job_id, True)
    assert free.duplicate is False


async def test_K1_an_expired_claim_is_not_revived_over_its_keys_cap(
    store_runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr", max_concurrent_per_key=1))
    await queue.enqueue("first", tenant_id="a")
    late = await queue.claim_next("w", ttl="1m")
    assert late is not None
    await clock.advance("1m")
    await queue.enqueue("second", tenant_id="a", priority="high")
    other = await queue.claim_next("x", ttl="1m")
    assert other is not None and other.job.payload == "second"

    with pytest.raises(ClaimLost, match="as many claims as the cap allows"):
        await late.renew()

    assert await queue.claim_next("y") is None


async def test_C7_claimers_of_several_runtimes_never_share_a_job(lasting_url: str) -> None:
    async with AsyncExitStack() as stack:
        queues = []
        for _ in range(3):
            runtime = await stack.enter_async_context(Runtime(storage=lasting_url))
            queues.append(_queue_of(runtime))
        await queues[0].enqueue_many(range(60))

        async def claim_all(queue: WorkerQueue) -> list[int]:
            found = []
            while (claim := await queue.claim_next("w")) is not None:
                found.append(claim.job.id)
            return found

        claimed = await asyncio.gather(*(claim_all(queue) for queue in queues))

    assert sorted(id for each in claimed for id in each) == list(range(1, 61))


def _queue_of(runtime: Runtime) -> WorkerQueue:
    token = current_frame_var.set(runtime.frame)
    try:
        return worker_queue("q")
    finally:
        current_frame_var.reset(token)


async def test_A6_purge_takes_what_is_ready_or_scheduled_and_nothing_in_flight(
    queue: WorkerQueue,
) -> None:
    await queue.enqueue_many([*range(5), NewJob("later", not_before="1h")])
    held = await queue.claim_next("w")
    assert held is not None

    gone = await queue.purge("manual purge")

    summary = await queue.summary()
    assert gone == 5
    assert (summary.purged, summary.ready, summary.scheduled, summary.in_flight) == (5, 0, 0, 1)
    assert await held.ack() is True
    assert await queue.purge() == 0


async def test_C7_racing_claimers_never_share_a_job(queue: WorkerQueue) -> None:
    await queue.enqueue_many(range(60))

    claims = await asyncio.gather(*(queue.claim_next(f"w{n}") for n in range(80)))

    ids = [claim.job.id for claim in claims if claim is not None]
    assert sorted(ids) == list(range(1, 61))


@pytest.mark.parametrize(
    "name",
    ["", " ", "queues", "x.claims", "x.responses", "a\nb", "a\x00b", "\ud800", "x" * 129, 7, None],
)
async def test_E10_names_that_could_collide_or_harm_are_refused(
    store_runtime: Runtime, name: Any
) -> None:
    with pytest.raises(InvalidOption, match="queue"):
        worker_queue(name)


@pytest.mark.parametrize(
    "options",
    [
        {"headers": 5},
        {"priority": "urgent"},
        {"tenant_id": "a\x01b"},
        {"tenant_id": ""},
        {"max_attempts": -1},
        {"max_attempts": True},
        {"dedupe_key": "a\x00"},
        {"not_before": "-1s"},
        {"not_before": datetime(2026, 1, 1)},
        {"headers": {1: 2}},
    ],
    ids=str,
)
async def test_bad_options_are_refused_by_name(queue: WorkerQueue, options: Any) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        await queue.enqueue(1, **options)


async def test_a_claim_needs_a_consumer_and_a_time_to_live(queue: WorkerQueue) -> None:
    for consumer, ttl in (("", "5m"), (" ", "5m"), ("w", 0), ("w", "soon")):
        with pytest.raises(InvalidOption):
            await queue.claim_next(consumer, ttl=ttl)


async def test_a_payload_of_ten_megabytes_passes_and_more_is_refused(queue: WorkerQueue) -> None:
    await queue.enqueue("x" * 10_000_000)

    claim = await queue.claim_next("w")
    assert claim is not None and len(claim.job.payload) == 10_000_000
    with pytest.raises(InvalidOption):
        await queue.enqueue("x" * 11_000_000)


async def test_an_outcome_that_is_not_json_is_kept_as_text_and_marked(queue: WorkerQueue) -> None:
    await queue.enqueue(1)
    claim = await queue.claim_next("w")
    assert claim is not None

    await claim.ack(object)

    [response] = await event_log_read("worker.triage.responses")
    assert response.payload["outcome_omitted"] is True
    assert "object" in response.payload["outcome"]


async def test_a_change_of_the_fairness_key_gives_every_job_its_new_share(
    store_runtime: Runtime,
) -> None:
    by_tenant = worker_queue("q", SchedulerPolicy(strategy="drr"))
    by_pair = worker_queue("q", SchedulerPolicy(strategy="drr", fairness_key="tenant-and-binding"))
    await by_tenant.enqueue_many(
        [NewJob(n, tenant_id="t", binding_key=b) for n in range(3) for b in ("x", "x", "y")]
    )
    await by_tenant.claim_next("w")

    found = [claim.job.binding_key for claim in await by_pair.claim_many("w", 4)]

    assert found == ["x", "y", "x", "y"]


async def test_D7_keys_that_come_and_go_leave_nothing_behind(runtime: Runtime) -> None:
    from harn.storage import Store
    from harn.storage.queue import list_shares

    queue = worker_queue("q", SchedulerPolicy(strategy="drr"))
    for start in range(0, 3000, 500):
        await queue.enqueue_many(
            [NewJob(n, tenant_id=f"t{n:05}") for n in range(start, start + 500)]
        )
        for claim in await queue.claim_many("w", 500):
            await claim.ack()

    counts = await queue.counts()
    assert counts is not None
    shares = await runtime.service(Store).run(lambda: list_shares(counts.queue_id, 10_000))

    assert len(shares) < 1000
    assert counts.dropped_selected + sum(share.selected for share in shares) == 3000


class JumpingClock(FakeClock):
    """A clock that is set back or forward; like a real one, it is not a test's own."""

    is_fake = False
    jump_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.jump_ms


async def test_a_clock_that_jumps_back_an_hour_neither_frees_nor_loses_a_claim(
    tmp_path: Any,
) -> None:
    clock = JumpingClock()
    async with Runtime(storage=f"sqlite:///{tmp_path}/q.sqlite", clock=clock):
        queue = worker_queue("q")
        await queue.enqueue_many([1, 2])
        first = await queue.claim_next("a", ttl="1m")
        clock.jump_ms = -HOUR
        second = await queue.claim_next("b", ttl="1m")
        nothing = await queue.claim_next("c")

        assert first is not None and second is not None
        assert second.job.id != first.job.id
        assert second.claimed_at_ms >= first.claimed_at_ms
        assert nothing is None
        assert await first.renew() is True
        assert await first.ack() is True


async def test_a_clock_that_jumps_forward_an_hour_leaves_one_winner(tmp_path: Any) -> None:
    clock = JumpingClock()
    async with Runtime(storage=f"sqlite:///{tmp_path}/q.sqlite", clock=clock):
        queue = worker_queue("q")
        await queue.enqueue(1)
        first = await queue.claim_next("a", ttl="1m")
        clock.jump_ms = HOUR
        second = await queue.claim_next("b", ttl="1m")

        assert first is not None and second is not None
        with pytest.raises(ClaimLost):
            await first.ack()
        assert await second.ack() is True


def test_a_summary_shows_itself_in_a_notebook_and_escapes_its_name() -> None:
    shown = QueueSummary("<script>", ready=3)._repr_html_()

    assert "<script>" not in shown
    assert "<td>3</td>" in shown


@pytest.mark.parametrize("strategy", ["drr", "fifo"])
async def test_A1_a_late_ack_beside_a_claim_keeps_its_job_from_being_claimed(
    store_runtime: Runtime, clock: FakeClock, strategy: Any
) -> None:
    queue = worker_queue("late", SchedulerPolicy(strategy=strategy))
    await queue.enqueue_many([NewJob(n, tenant_id="a") for n in range(3)])
    late = await queue.claim_next("slow", ttl="1s")
    assert late is not None
    await clock.advance(2)
    await queue.summary()  # notices that the claim has expired: the job is ready again

    acked, other = await asyncio.gather(late.ack(), queue.claim_next("quick"))

    assert acked
    assert other is not None
    assert other.job.id != late.job.id
    assert (await queue.summary()).acked == 1


async def test_A1_acks_that_meet_settle_the_held_claims_and_no_others(
    store_runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("meet", SchedulerPolicy(strategy="drr"))
    await queue.enqueue_many([NewJob(n, tenant_id="ab"[n % 2]) for n in range(6)])
    lost = await queue.claim_many("slow", 2, ttl="1s")
    await clock.advance(2)
    held = await queue.claim_many("quick", 6, ttl="5m")
    taken = {claim.job.id for claim in lost}
    others = [claim for claim in held if claim.job.id not in taken]

    told = await asyncio.gather(
        *(claim.ack(claim.job.payload) for claim in (others[0], *lost, *others[1:])),
        return_exceptions=True,
    )
    rest = await asyncio.gather(*(claim.ack(claim.job.payload) for claim in held))

    assert [type(each) for each in told] == [bool, ClaimLost, ClaimLost, *[bool] * 3]
    assert [claim.job.id for claim, acked in zip(held, rest, strict=True) if acked] == [*taken]
    jobs = await queue.jobs(status="acked")
    assert [job.outcome for job in jobs] == [job.payload for job in jobs] == [*range(6)]
    assert (await queue.summary()).responses == 6
    assert await store_runtime.service(Store).run(compare) == []


async def test_A1_acks_of_one_job_that_meet_settle_it_once(store_runtime: Runtime) -> None:
    queue = worker_queue("twice")
    await queue.enqueue_many([1, 2])
    first, second = await queue.claim_many("me", 2)

    told = await asyncio.gather(first.ack(), second.ack(), first.ack())

    assert [*told] == [True, True, False]
    assert (await queue.summary()).responses == 2


async def test_D4_a_queue_reads_the_environment_when_it_is_made(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARN_SCHEDULER_STRATEGY", "drr")
    queue = worker_queue("triage")
    for tenant in "aaabbb":
        await queue.enqueue({}, tenant_id=tenant)

    claims = [await queue.claim_next("w") for _ in range(6)]
    picked = [claim.job.tenant_id for claim in claims if claim]

    assert picked == ["a", "b"] * 3


async def test_D4_a_bad_setting_is_refused_where_the_queue_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARN_SCHEDULER_QUANTUM", "0")
    async with Runtime():
        with pytest.raises(InvalidOption, match="HARN_SCHEDULER_QUANTUM"):
            worker_queue("other")
        assert worker_queue("other", SchedulerPolicy()).policy.quantum == 1


async def test_the_first_claim_by_another_policy_records_it(store_runtime: Runtime) -> None:
    fair = SchedulerPolicy(strategy="drr", weights={"acme": 3})
    await worker_queue("triage").enqueue_many(range(5))
    for policy in (None, None, fair, fair, None):
        assert await worker_queue("triage", policy).claim_next("worker-a")

    claims = await event_log_read("worker.triage.claims")

    told = [each.payload["scheduling"].get("policy") for each in claims if "claimed" in each.kind]
    plain = SchedulerPolicy().as_dict()
    assert told == [plain, None, fair.as_dict(), None, plain]
