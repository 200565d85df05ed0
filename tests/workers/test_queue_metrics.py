"""What became of a queue's jobs is counted in the store, and read by any process."""

from __future__ import annotations

import re

import harn
from harn import NewJob, Runtime, consumers, worker_queue
from harn.orchestrator import queue_samples
from harn.storage import Store
from harn.storage.log import compare, rebuild
from harn.telemetry.metrics import Metrics
from harn.testing import FakeClock


async def scraped(runtime: Runtime) -> dict[str, float]:
    """Return every sample about queue `q` without its queue label, by name and other labels."""
    text = runtime.service(Metrics).exposition(await queue_samples(runtime))
    found = re.findall(r"^(harn_worker_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    return {
        f"{name} {labels}".replace('queue="q"', "").replace(",", "").strip(): float(value)
        for name, labels, value in found
        if 'queue="q"' in labels
    }


async def outcomes(runtime: Runtime) -> dict[str, float]:
    found = await scraped(runtime)
    counted = {
        name.partition('outcome="')[2].rstrip('"'): value
        for name, value in found.items()
        if name.startswith("harn_worker_jobs_total")
    }
    return {name: value for name, value in counted.items() if value}


async def live_a_lot(clock: FakeClock) -> None:
    """Let jobs end in every way there is."""
    queue = worker_queue("q")
    ways = ("acked", "fails", "dies", "is cancelled", "is purged")
    await queue.enqueue_many([NewJob(way, max_attempts=2) for way in ways])
    acked, fails, dies, _, _ = await queue.claim_many("me", 5, ttl="1m")
    await acked.ack()
    await fails.fail("once", delay="0s")
    await dies.fail("twice", delay="0s")
    await queue.cancel(4)
    again = {claim.job.id: claim for claim in await queue.claim_many("me", 2, ttl="1m")}
    await again[2].ack()
    await again[3].fail("for good")
    await clock.advance(minutes=2)
    expired = await queue.claim_next("me", ttl="1m")
    assert expired is not None and expired.job.id == 5
    await expired.release()
    await queue.purge()


async def test_57_every_outcome_is_counted_for_every_process(lasting_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=lasting_url, clock=clock):
        await live_a_lot(clock)

    async with Runtime(storage=lasting_url, clock=FakeClock()) as another:
        found = await outcomes(another)
        assert (await scraped(another))["harn_worker_dead_letters_total"] == 1

    ended = {"acked": 2, "dead": 1, "cancelled": 1, "purged": 1}
    assert found == {**ended, "failed": 3, "expired": 1}


async def test_57_a_retried_job_was_a_dead_letter_all_the_same(storage_url: str) -> None:
    async with Runtime(storage=storage_url, clock=FakeClock()) as runtime:
        queue = worker_queue("q")
        await queue.enqueue("dies", max_attempts=1)
        for _ in range(2):
            claim = await queue.claim_next("me")
            assert claim is not None
            await claim.fail("no luck")
            assert await queue.retry(1)

        found = await scraped(runtime)
        summary = await queue.summary()

    assert found["harn_worker_dead_letters_total"] == 2, "a counter never goes back"
    assert summary.dead == 0


async def test_57_handler_seconds_are_kept_in_the_store(lasting_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=lasting_url, clock=clock):
        queue = worker_queue("q")
        await queue.enqueue_many([1, 2])
        for seconds in (2, 0.02):
            claim = await queue.claim_next("me")
            assert claim is not None
            await clock.advance(seconds=seconds)
            await (claim.ack() if seconds == 2 else claim.fail("no luck"))

    async with Runtime(storage=lasting_url, clock=FakeClock()) as another:
        found = await scraped(another)

    name = "harn_worker_handler_seconds"
    assert found[f"{name}_count"] == 2
    assert found[f"{name}_sum"] == 2.02
    assert found[f'{name}_bucket le="0.01"'] == 0
    assert found[f'{name}_bucket le="0.05"'] == found[f'{name}_bucket le="1"'] == 1
    assert found[f'{name}_bucket le="5"'] == 2


async def test_a_rebuilt_index_counts_the_same(lasting_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=lasting_url, clock=clock) as runtime:
        await live_a_lot(clock)
        before = await scraped(runtime)
        store = runtime.service(Store)
        assert await store.run(compare) == []

        await store.run(rebuild)

        assert await scraped(runtime) == before


async def test_57_who_works_what_waits_and_what_is_paused_is_shown(storage_url: str) -> None:
    clock = FakeClock()
    async with Runtime(storage=storage_url, clock=clock) as runtime:
        queue = worker_queue("q")
        await queue.enqueue_many([1, 2])

        async def look(job: harn.Job) -> dict[str, float]:
            if job.payload == 1:
                await queue.pause(tenant_id="acme", reason="too many")
                await clock.advance(seconds=90)
            return await scraped(runtime)

        report = await harn.drain("q", look)
        assert not [each for each in await consumers() if each.alive]
        after = await scraped(runtime)

    first, second = (response["outcome"] for response in report.responses)
    assert (first["harn_worker_queue_ready"], first["harn_worker_queue_in_flight"]) == (1, 1)
    assert first["harn_worker_consumers"] == 1
    assert second["harn_worker_queue_paused_seconds"] == 90
    assert (after["harn_worker_consumers"], after["harn_worker_queue_ready"]) == (0, 0)
