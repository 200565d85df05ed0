"""A trim of a worker queue: what was settled is gone from the log, and no fault of the index."""

from __future__ import annotations

from typing import Any

import pytest

from harn import (
    ClaimLost,
    Runtime,
    SchedulerPolicy,
    channel_emit,
    topics,
    trigger_register,
    worker_queue,
)
from harn.storage import Operation, Store, ask, ask_many
from harn.storage.log import compare, list_topics, rebuild
from harn.testing import FakeClock


async def work_and_trim(runtime: Runtime) -> None:
    queue = worker_queue("q")
    for n in range(30):
        await queue.enqueue({"n": n})
    for n in range(25):
        claim = await queue.claim_next("me")
        assert claim is not None
        await claim.ack(n)
    gone = 0
    for topic in await runtime.service(Store).run(list_topics, write=False):
        gone += await runtime.event_log.trim(topic, keep=0)
    assert gone >= 25


async def test_settled_jobs_that_were_trimmed_are_no_difference(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await work_and_trim(runtime)

        assert await store.run(compare) == []

        claim = await worker_queue("q").claim_next("me")
        assert claim is not None
        await claim.ack()
        assert await store.run(compare) == []
        await store.run(rebuild)
        assert await store.run(compare) == []


async def test_what_a_trim_does_not_explain_is_still_told(lasting_url: str) -> None:
    def spoil() -> Operation[None]:
        yield ask_many("rekey_jobs", ("queue_id", "id", "key"), [(1, 29, "another")])
        yield ask("set_cap", queue_id=1, cap=7)

    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        await work_and_trim(runtime)
        await store.run(spoil)

        found = await store.run(compare)

    assert {each.table for each in found} == {"jobs", "queues"}
    assert [each.row[1] for each in found if each.table == "jobs"] == [29, 29]


async def test_a_queue_of_which_nothing_is_left_hides_no_other(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        store = runtime.service(Store)
        for name in ("all-gone", "at-work"):
            await worker_queue(name).enqueue_many([1, 2])
        for claim in await worker_queue("all-gone").claim_many("me", 2):
            await claim.ack()
        for topic in ("worker.all-gone", "worker.all-gone.claims", "worker.all-gone.responses"):
            assert await runtime.event_log.trim(topic, keep=0) >= 2

        assert await store.run(compare) == []

        await worker_queue("all-gone").enqueue(3)
        assert await store.run(compare) == []
        await store.run(rebuild)
        assert await store.run(compare) == []


async def test_E11_a_trim_brings_no_settled_job_back(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        queue = worker_queue("q")
        await queue.enqueue_many([1, 2])
        for claim in await queue.claim_many("me", 2):
            await claim.ack()
        log = runtime.event_log

        early = await log.trim("worker.q.claims", keep=0)
        await runtime.service(Store).run(rebuild)
        found = await queue.claim_next("me")
        later = [await log.trim(f"worker.q{part}", keep=0) for part in ("", ".claims")]

    assert (early, found) == (0, None)
    assert later[0] == 2
    assert later[1] >= 2, "with the jobs gone, nothing needs their claims"


async def test_E11_a_trim_makes_no_event_new_again(lasting_url: str) -> None:
    handled: list[Any] = []

    async def on(runtime: Runtime) -> None:
        await trigger_register(
            id="t",
            kind="channel.emit",
            provider="channel",
            match={"events": ["channel:x"]},
            handler=lambda event: handled.append(event.get("provider_payload.payload")),
        )

    async with Runtime(storage=lasting_url) as runtime:
        await on(runtime)
        await channel_emit("x", 1, id="once")
        for topic in (topics.TRIGGER_OUTBOX, topics.TRIGGER_ATTEMPTS, topics.TRIGGER_CLAIMS):
            assert await runtime.event_log.trim(topic, keep=0) == 0, topic
        await runtime.service(Store).run(rebuild)
    async with Runtime(storage=lasting_url) as runtime:
        await on(runtime)
        again = await channel_emit("x", 1, id="once")
        gone = await runtime.event_log.trim(topics.TRIGGER_ENVELOPES, keep=0)
        settled = await runtime.event_log.trim(topics.TRIGGER_OUTBOX, keep=0)
        known = await runtime.event_log.trim(topics.TRIGGER_CLAIMS, keep=0)

    assert again.duplicate
    assert handled == [1]
    assert (gone, settled, known) == (1, 1, 0)


async def test_51_a_trim_forgets_no_instant_that_has_fired(lasting_url: str) -> None:
    clock = FakeClock("2026-01-01T00:00:00Z")
    async with Runtime(storage=lasting_url, clock=clock) as runtime:
        await trigger_register(
            id="t",
            kind="cron",
            provider="cron",
            match={"schedule": "0 * * * *"},
            handler=lambda event: None,
        )
        await clock.advance("3h")

        *_, newest = await runtime.event_log.read(topics.CRON_STATE)
        assert await runtime.event_log.trim(topics.CRON_STATE, keep=0) >= 2
        assert await runtime.event_log.read(topics.CRON_STATE) == [newest]
        await runtime.event_log.trim(topics.TRIGGER_OWNERS, keep=0)
        assert await runtime.service(Store).run(compare) == []


async def kept(runtime: Runtime, dump: str) -> int:
    """Count the rows of an index's table."""

    def count() -> Operation[int]:
        return len((yield ask(dump)))

    return await runtime.service(Store).run(count)


async def test_what_is_trimmed_leaves_the_index_too(lasting_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=lasting_url, clock=clock) as runtime:
        queue = worker_queue("q")
        for n in range(20):
            await queue.enqueue(n, dedupe_key=f"key-{n}")
        for claim in await queue.claim_many("me", 15):
            await claim.ack()
        await clock.advance(2 * 86_400)

        assert await runtime.event_log.trim("worker.q", keep=0) == 15

        assert await kept(runtime, "dump_jobs") == 5
        assert await kept(runtime, "dump_dedupe") == 5
        assert await runtime.service(Store).run(compare) == []
        summary = await queue.summary()
        assert (summary.ready, summary.acked) == (5, 15)


async def test_a_dedupe_key_that_counts_keeps_its_job(lasting_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=lasting_url, clock=clock) as runtime:
        queue, log = worker_queue("q"), runtime.event_log
        await queue.enqueue("before")
        first = await queue.enqueue("once", dedupe_key="key")
        await queue.enqueue("behind")
        for claim in await queue.claim_many("me", 3):
            await claim.ack()

        assert await log.trim("worker.q", keep=0) == 1
        await runtime.service(Store).run(rebuild)
        again = await queue.enqueue("once more", dedupe_key="key")
        await clock.advance(86_401)
        later = await log.trim("worker.q", keep=0)
        other = await queue.enqueue("another day", dedupe_key="key")

    assert (again.job_id, again.duplicate) == (first.job_id, True)
    assert later == 2
    assert not other.duplicate


async def test_A2_a_claim_on_a_job_that_was_trimmed_is_lost(lasting_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=lasting_url, clock=clock) as runtime:
        queue = worker_queue("q")
        await queue.enqueue(1)
        zombie = await queue.claim_next("slow", ttl="1s")
        assert zombie is not None
        await clock.advance(2)
        heir = await queue.claim_next("quick")
        assert heir is not None
        await heir.ack()
        assert await runtime.event_log.trim("worker.q", keep=0) == 1

        with pytest.raises(ClaimLost, match="trimmed"):
            await zombie.ack()


async def test_a_trim_of_the_claims_does_not_forget_by_what_the_keys_go(lasting_url: str) -> None:
    policy = SchedulerPolicy(strategy="drr", fairness_key="binding", max_concurrent_per_key=2)
    async with Runtime(storage=lasting_url) as runtime:
        queue, store = worker_queue("q", policy), runtime.service(Store)
        await queue.enqueue_many([1, 2, 3])
        for claim in await queue.claim_many("me", 3):
            await claim.ack()
        for part in ("", ".claims", ".responses"):
            await runtime.event_log.trim(f"worker.q{part}", keep=0)
        await queue.enqueue(4)

        assert await store.run(compare) == []
        await store.run(rebuild)
        assert await store.run(compare) == []
        counts = await queue.counts()

    assert counts is not None
    assert (counts.dimension, counts.cap) == ("binding", 2)
