"""One delivery has one key, whatever repeats it; its work is more than its dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given, strategies as st

from harn import Runtime, SpawnToPool, TriggerEvent, pool_create, trigger_fire, trigger_register
from harn.pools import pool_get
from harn.testing import FakeClock
from harn.triggers import DeadLetters, JobRunner, check_binding
from harn.triggers.delivery import delivery_key
from harn.triggers.retry import FROM_MANIFEST
from harn.workers import Consumer, DrainReport, worker_queue

names = st.text(alphabet="a:#%.1", min_size=1, max_size=6)


@given(st.lists(st.tuples(names, names, st.integers(0, 3)), min_size=2, max_size=2, unique=True))
def test_different_deliveries_never_share_a_key(parts: list[tuple[str, str, int]]) -> None:
    one, other = parts

    assert delivery_key(*one) != delivery_key(*other)


async def to_pool(factory: Callable[[TriggerEvent], Any], id: str = "t") -> None:
    await trigger_register(
        id=id,
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=SpawnToPool("work", factory),
        retry={"max": 1},
    )


def keys() -> list[str | None]:
    pool = pool_get("work")
    assert pool is not None
    return [task.idempotency_key for task in pool.snapshot().tasks]


async def test_65_an_event_and_each_of_its_replays_have_their_own_key(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        await pool_create(name="work")
        await to_pool(lambda event: lambda: None)
        event_id = (await trigger_fire("t", 1)).event_id
        for _ in range(2):
            await runtime.service(DeadLetters).replay_event(event_id)

        assert keys() == [f"t:{event_id}", f"t:{event_id}#1", f"t:{event_id}#2"]


async def test_65_replays_are_numbered_across_processes(lasting_url: str) -> None:
    async def replay_once(event_id: str) -> list[str | None]:
        async with Runtime(storage=lasting_url) as runtime:
            await pool_create(name="work")
            await to_pool(lambda event: lambda: None)
            await runtime.service(DeadLetters).replay_event(event_id)
            return keys()

    async with Runtime(storage=lasting_url):
        await pool_create(name="work")
        await to_pool(lambda event: lambda: None)
        event_id = (await trigger_fire("t", 1)).event_id

    assert await replay_once(event_id) == [f"t:{event_id}#1"]
    assert await replay_once(event_id) == [f"t:{event_id}#2"]


async def test_65_a_takeover_of_a_replay_uses_the_replays_key(lasting_url: str) -> None:
    hanging = False
    begun, ran = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        ran.set()

    async def factory(event: TriggerEvent) -> Any:
        if hanging:
            begun.set()
            await asyncio.Event().wait()
        return work

    async with Runtime(storage=lasting_url) as runtime:
        await pool_create(name="work")
        await to_pool(factory)
        event_id = (await trigger_fire("t", 1)).event_id
        hanging = True
        replaying = asyncio.ensure_future(runtime.service(DeadLetters).replay_event(event_id))
        await begun.wait()
    await asyncio.wait((replaying,))
    hanging = False
    ran.clear()

    async with Runtime(storage=lasting_url):
        await pool_create(name="work")
        await to_pool(factory)  # from now on events of the dead process are taken over
        await asyncio.wait_for(ran.wait(), 30)

        assert keys() == [f"t:{event_id}#1"]


async def test_a_dead_letter_is_resolved_only_when_its_pool_work_ended_well(
    lasting_url: str,
) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        await to_pool(lambda event: lambda: 1 / 0)
        letter = str((await trigger_fire("t", 1)).dlq_entry_id)  # there is no pool yet
        letters = runtime.service(DeadLetters)
        await pool_create(name="work")

        failed = await letters.replay(letter)
        after_failure = (await letters.get(letter))["state"]
        await to_pool(lambda event: lambda: "done")
        done = await letters.replay(letter)
        after_success = (await letters.get(letter))["state"]

    assert (failed.status, "ZeroDivisionError" in str(failed.error)) == ("failed", True)
    assert (done.status, done.error) == ("dispatched", None)
    assert (after_failure, after_success) == ("pending", "resolved")


async def test_a_dead_letter_whose_pool_work_does_not_end_in_time_stays(
    runtime: Runtime, clock: FakeClock
) -> None:
    await to_pool(lambda event: asyncio.Event().wait)
    letter = str((await trigger_fire("t", 1)).dlq_entry_id)
    letters = runtime.service(DeadLetters)
    await pool_create(name="work")

    replaying = asyncio.ensure_future(letters.replay(letter))
    await clock.advance("31s")

    assert "had not ended in time" in str((await replaying).error)
    assert (await letters.get(letter))["state"] == "pending"


# -- jobs ----------------------------------------------------------------------------------------


async def drain(runtime: Runtime, handler: Any, **options: Any) -> tuple[DrainReport, JobRunner]:
    """Drain the queue as a command does: a job's pool work counts."""
    binding = check_binding(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={},
        handler=handler,
        options=options,
        default_retry=FROM_MANIFEST,
    )
    runner = JobRunner(runtime, lambda id: binding, work_within=30)
    consumer = Consumer(worker_queue("triage"), runner, claim_ttl="1m", triggers=frozenset({"t"}))
    return await consumer.run(), runner


async def enqueue() -> str:
    await trigger_register(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler="worker://triage",
    )
    return (await trigger_fire("t", 1)).event_id


async def test_a_job_is_acked_when_the_pool_work_that_it_caused_completed(
    storage_url: str,
) -> None:
    done: list[int] = []

    async def slow() -> None:
        await asyncio.sleep(0)
        done.append(1)

    async def handler(event: TriggerEvent) -> None:
        pool = pool_get("work")
        assert pool is not None
        await pool.submit(slow)

    async with Runtime(storage=storage_url) as runtime:
        await pool_create(name="work")
        await enqueue()
        report, runner = await drain(runtime, handler)

        assert (report.acked, done, runner.unwell) == (1, [1], {})


async def test_a_job_whose_pool_work_failed_is_not_acked(storage_url: str) -> None:
    async with Runtime(storage=storage_url) as runtime:
        await pool_create(name="work")
        await enqueue()
        report, runner = await drain(runtime, SpawnToPool("work", lambda event: lambda: 1 / 0))

        assert (report.acked, report.deferred, report.summary.in_flight) == (0, 1, 1)
        assert "ZeroDivisionError" in runner.unwell[1]
        assert "ZeroDivisionError" in report.responses[0]["error"]


async def test_65_a_redelivered_job_has_the_same_key_and_a_replayed_one_its_number(
    runtime: Runtime, clock: FakeClock
) -> None:
    await pool_create(name="work")
    event_id = await enqueue()
    failing = SpawnToPool("work", lambda event: lambda: 1 / 0)
    await drain(runtime, failing)
    await clock.advance("2m")
    await drain(runtime, failing)
    await runtime.service(DeadLetters).replay_event(event_id, "t")
    await drain(runtime, SpawnToPool("work", lambda event: lambda: None))

    assert keys() == [f"t:{event_id}", f"t:{event_id}#1"]


async def test_55_immediate_retries_are_spent_within_one_drain(storage_url: str) -> None:
    tried: list[int] = []

    def fail(event: TriggerEvent) -> None:
        tried.append(1)
        raise RuntimeError("boom")

    async with Runtime(storage=storage_url) as runtime:
        await enqueue()
        retry = {"max": 3, "backoff": "immediate"}
        report, _ = await drain(runtime, fail, retry=retry)

        assert (len(tried), report.summary.dead) == (3, 1)
        assert (report.summary.ready, report.summary.in_flight) == (0, 0)
