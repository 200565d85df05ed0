"""Settled jobs are trimmed by themselves, when their time is over and never before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from harn import JobError, NewJob, Runtime, drain, event_log_read, topics, worker_queue
from harn.orchestrator import explain, queue_samples
from harn.storage import Store
from harn.storage.log import compare, rebuild
from harn.storage.log.events import move_cursor
from harn.storage.queue import retention
from harn.storage.queue.job_records import ACKED, CANCELLED, CLAIMED, DEAD, PURGED, READY
from harn.storage.queue.retention import Keeping, settled_prefix
from harn.testing import FakeClock
from tests.fake_clock import fake_clock

DAY_MS = 86_400_000


@pytest.fixture
async def runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url, clock=FakeClock(), seed=0) as runtime:
        yield runtime


async def settle(*payloads: Any, dies: bool = False) -> None:
    """Enqueue a job for each payload, and ack it, or let it die."""
    queue = worker_queue("q")
    await queue.enqueue_many([NewJob(each, max_attempts=1) for each in payloads])
    for _ in payloads:
        claim = await queue.claim_next("me")
        assert claim is not None
        await (claim.fail("no luck") if dies else claim.ack(claim.job.payload))


async def serve_for_a_while() -> None:
    """Serve the queue as a consumer that finds nothing, and let the look at old jobs end."""
    await drain("q", lambda job: None)
    for _ in range(5):
        await fake_clock().advance(seconds=1)


async def ids() -> list[int]:
    return [job.id for job in await worker_queue("q").jobs()]


@pytest.mark.parametrize(
    ("rows", "gone"),
    [
        ([(1, ACKED, 0), (2, PURGED, 0), (3, CANCELLED, 0)], [1, 2, 3]),
        ([(1, ACKED, 0), (2, ACKED, 90), (3, ACKED, 0)], [1]),
        ([(1, DEAD, 0), (2, ACKED, 0)], []),
        ([(1, ACKED, 0), (2, READY, None)], [1]),
        ([(1, CLAIMED, None), (2, ACKED, 0)], []),
        ([], []),
    ],
)
def test_59_only_the_oldest_jobs_whose_time_is_over_go(rows: list[Any], gone: list[int]) -> None:
    assert settled_prefix(rows, 100, Keeping(50, 500)) == gone


def test_59_zero_keeps_forever() -> None:
    rows = [(1, ACKED, 0), (2, DEAD, 0)]

    assert settled_prefix(rows, 10**15, Keeping(0, 1)) == []
    assert settled_prefix(rows[1:], 10**15, Keeping(0, 1)) == [2]
    assert Keeping(0, 0).shortest == 0


@pytest.mark.usefixtures("runtime")
async def test_59_a_settled_job_is_trimmed_after_14_days_and_not_before() -> None:
    await settle("a", "b")
    await fake_clock().advance(days=13)
    await serve_for_a_while()
    kept = await ids()

    await fake_clock().advance(days=2)
    await serve_for_a_while()

    assert (kept, await ids()) == ([1, 2], [])
    assert await event_log_read("worker.q") == []
    left = [record.kind for record in await event_log_read("worker.q.claims")]
    assert left == ["jobs_trimmed"]
    assert await event_log_read("worker.q.responses") == []


@pytest.mark.usefixtures("runtime")
async def test_59_cancelled_and_purged_jobs_go_like_acked_ones() -> None:
    queue = worker_queue("q")
    await queue.enqueue_many(["is cancelled", "is purged"])
    await queue.cancel(1)
    await queue.purge()
    await fake_clock().advance(days=15)

    await serve_for_a_while()

    assert await ids() == []


@pytest.mark.usefixtures("runtime")
async def test_59_a_dead_job_stays_90_days_and_holds_those_behind_it() -> None:
    await settle("before")
    await settle("dies", dies=True)
    await settle("behind")
    await fake_clock().advance(days=89)
    await serve_for_a_while()
    kept = await ids()
    failure = await worker_queue("q").job(2)

    await fake_clock().advance(days=2)
    await serve_for_a_while()

    assert kept == [2, 3]
    assert failure is not None and failure.error == "no luck"
    assert await ids() == []


@pytest.mark.usefixtures("runtime")
async def test_59_E11_a_job_that_is_not_settled_holds_those_behind_it() -> None:
    queue = worker_queue("q")
    await queue.enqueue("waits", not_before="30d")
    await settle("behind")
    await fake_clock().advance(days=20)

    await serve_for_a_while()

    assert await ids() == [1, 2]
    assert len(await event_log_read("worker.q.responses")) == 1


async def test_59_a_dedupe_key_that_counts_keeps_its_job(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARN_DEDUPE_WINDOW", "30d")
    async with Runtime(storage=storage_url, clock=FakeClock()):
        queue = worker_queue("q")
        await queue.enqueue("once", dedupe_key="k")
        await queue.purge()
        await fake_clock().advance(days=20)
        await serve_for_a_while()
        again = await queue.enqueue("once", dedupe_key="k")
        await fake_clock().advance(days=15)
        await serve_for_a_while()

        assert (again.job_id, again.duplicate) == (1, True)
        assert await ids() == []


@pytest.mark.usefixtures("runtime")
async def test_59_totals_stay_when_jobs_go() -> None:
    await settle("a", "b")
    await settle("dies", dies=True)
    before = await worker_queue("q").summary()
    await fake_clock().advance(days=91)

    await serve_for_a_while()
    await settle("c")

    after = await worker_queue("q").summary()
    assert await ids() == [4]
    assert (after.acked, after.dead, after.responses) == (3, 1, before.responses + 1)


async def test_59_totals_stay_for_other_processes_and_for_a_rebuilt_index(
    lasting_url: str,
) -> None:
    async def seen(runtime: Runtime) -> list[Any]:
        found = [each for each in await queue_samples(runtime) if "worker" in each.family]
        return [await ids(), (await worker_queue("q").summary()).as_dict(), found]

    async with Runtime(storage=lasting_url, clock=FakeClock()) as runtime:
        watching = Runtime(storage=lasting_url, clock=runtime.clock)
        await settle("a", "b")
        await settle("dies", dies=True)
        async with watching:
            assert await ids() == [1, 2, 3]
            await fake_clock(runtime).advance(days=91)
            async with Runtime(storage=lasting_url, clock=runtime.clock):
                await serve_for_a_while()
                await settle("c")
            told = await seen(watching)
        assert await seen(runtime) == told
        assert await runtime.service(Store).run(compare) == []
        await runtime.service(Store).run(rebuild)
        assert await seen(runtime) == told
    assert told[0] == [4]
    assert (told[1]["acked"], told[1]["dead"]) == (3, 1)


@pytest.mark.usefixtures("runtime")
async def test_58_the_result_of_a_trimmed_job_is_an_error_that_says_so() -> None:
    receipt = await worker_queue("q").enqueue("a")
    await drain("q", lambda job: "done")
    await fake_clock().advance(days=15)
    await serve_for_a_while()

    assert await worker_queue("q").job(receipt.job_id) is None
    with pytest.raises(JobError, match=r"trimmed \(HARN_KEEP_SETTLED\)"):
        await receipt.result()


async def test_59_looking_trims_nothing(runtime: Runtime) -> None:
    await settle("a")
    await fake_clock().advance(days=100)

    await worker_queue("q").summary()
    await worker_queue("q").job(1)
    await queue_samples(runtime)
    await explain(runtime, "q", 1)
    assert await worker_queue("q").claim_next("by hand") is None
    await fake_clock().advance(minutes=10)

    assert await ids() == [1]


async def test_59_nothing_is_trimmed_that_is_to_be_kept_forever(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARN_KEEP_SETTLED", "0")
    monkeypatch.setenv("HARN_KEEP_DEAD", "1d")
    async with Runtime(storage=storage_url, clock=FakeClock()):
        await settle("dies", dies=True)
        await settle("a")
        await fake_clock().advance(days=4000)
        await serve_for_a_while()

        assert await ids() == [2]


async def test_59_a_reader_that_has_not_seen_the_records_keeps_them(runtime: Runtime) -> None:
    await runtime.service(Store).run(lambda: move_cursor("worker.q", "audit", 0))
    await settle("a")
    await fake_clock().advance(days=15)

    await serve_for_a_while()

    assert await ids() == [1]


async def test_59_each_step_is_small_and_claims_go_on_between(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 50)
    monkeypatch.setattr(retention, "REWRITTEN_AT_ONCE", 50)
    async with Runtime(storage=storage_url, clock=FakeClock()):
        queue = worker_queue("q")
        await queue.enqueue_many(range(500))
        await queue.purge()
        await fake_clock().advance(days=15)
        await drain("q", lambda job: None)
        await fake_clock().advance(seconds=0.35)
        some = await ids()
        await settle("meanwhile")
        for _ in range(10):
            await fake_clock().advance(seconds=1)

        assert 0 < len(some) < 500
        assert await ids() == [501]
        left = await event_log_read("worker.q.claims")
        assert [each.payload["below"] for each in left if each.kind == "jobs_trimmed"][-1] == 501


async def test_59_rows_whose_records_a_forced_trim_took_go_too(runtime: Runtime) -> None:
    queue = worker_queue("q")
    await queue.enqueue("a", not_before="1d")
    await runtime.event_log.trim("worker.q", keep=0, force=True)
    await queue.cancel(1)
    await settle("b")
    await fake_clock().advance(days=15)

    await serve_for_a_while()

    assert await event_log_read(topics.queue_topics("q").jobs) == []
    assert (await queue.summary()).cancelled == 1
