"""The idle consumers of a process look at the store together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from harn import ClaimLost, Job, Runtime, SchedulerPolicy, StorageBusy, worker_queue
from harn.storage import Store
from harn.storage.queue.claimable import Look, has_work, look_at
from harn.workers import Consumer
from harn.workers.idle_consumers import IdleLooks

FAIR = SchedulerPolicy(strategy="drr")
CAPPED = SchedulerPolicy(strategy="drr", max_concurrent_per_key=1)
IN_TREE = SchedulerPolicy(strategy="drr", hierarchy="/", max_concurrent_per_key=1)


class Listening:
    """Whether the store of this process hears of what was written, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_deaf = False
        self.looks: list[tuple[str, ...]] = []
        self.marks = 0
        appended, hinted, mark = Store._appended, Store._hinted, Store.mark

        def hear(store: Store, topics: frozenset[str]) -> None:
            if not self.is_deaf:
                appended(store, topics)

        def hear_a_hint(store: Store) -> None:
            if not self.is_deaf:
                hinted(store)

        def counted_mark(store: Store) -> object | None:
            self.marks += 1
            return mark(store)

        def counted_look(queues: tuple[str, ...]) -> Any:
            self.looks.append(queues)
            return look_at(queues)

        monkeypatch.setattr(Store, "_appended", hear)
        monkeypatch.setattr(Store, "_hinted", hear_a_hint)
        monkeypatch.setattr(Store, "mark", counted_mark)
        monkeypatch.setattr("harn.storage.queue.claimable.look_at", counted_look)
        monkeypatch.setattr("harn.workers.idle_consumers.POLL", 0.05)


@pytest.fixture
async def listening(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listening]:
    monkeypatch.setenv("HARN_LEASE_MS", "3600000")  # no lease is renewed while looks are counted
    monkeypatch.setenv("HARN_LEASE_RENEW_MS", "1200000")
    listening = Listening(monkeypatch)
    async with Runtime(storage=storage_url):
        yield listening


class Idle:
    """Consumers of some queues, in this process, that find nothing to do."""

    def __init__(self, *queues: str) -> None:
        self.handled: asyncio.Queue[str] = asyncio.Queue()
        self.consumers = [
            Consumer(worker_queue(queue), self._handle, stop_when_empty=False) for queue in queues
        ]

    async def _handle(self, job: Job) -> None:
        await self.handled.put(job.queue)

    async def __aenter__(self) -> Idle:
        self._running = [asyncio.create_task(each.run()) for each in self.consumers]
        while not all(each._is_empty and each._attention for each in self.consumers):
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *exc: object) -> None:
        for each in self.consumers:
            each.stop()
        await asyncio.gather(*self._running)


async def test_a_look_at_many_queues_agrees_with_a_look_at_each(listening: Listening) -> None:
    await worker_queue("ready").enqueue(1)
    await worker_queue("fair", FAIR).enqueue(1, tenant_id="acme")
    await worker_queue("later").enqueue(1, not_before="1h")
    await worker_queue("soon").enqueue(1, not_before="1m")
    await worker_queue("paused").enqueue(1)
    await worker_queue("paused").pause()
    await worker_queue("parked", FAIR).enqueue(1, tenant_id="acme")
    await worker_queue("parked", FAIR).pause(tenant_id="acme")
    await worker_queue("parked", FAIR).claim_next("me")
    capped = worker_queue("capped", CAPPED)
    for _ in range(2):
        await capped.enqueue(1, tenant_id="acme")
    assert len(await capped.claim_many("me", 2, "1h")) == 1
    tree = worker_queue("tree", IN_TREE)
    for tenant in ("acme/bob", "acme/eve", "zoo"):
        await tree.enqueue(1, tenant_id=tenant)
    assert len(await tree.claim_many("me", 1, "1h")) == 1
    closed = worker_queue("closed-tree", IN_TREE)
    for tenant in ("acme/bob", "acme/eve"):
        await closed.enqueue(1, tenant_id=tenant)
    assert len(await closed.claim_many("me", 2, "1h")) == 1
    queues = ("ready fair later soon paused parked capped tree closed-tree unknown").split()

    look = await capped.store.run(partial(look_at, queues), write=False)

    each = {}
    for queue in queues:
        each[queue], _, _ = await capped.store.run(partial(has_work, queue), write=False)
    assert look.ready == {queue for queue, found in each.items() if found}
    assert look.ready == {"ready", "fair", "tree"}
    assert look.due_in is not None and 0 < look.due_in <= 60, "the queue `soon` is the first due"
    assert await capped.store.run(partial(look_at, ["unknown"]), write=False) == Look(
        frozenset(), None
    )


async def test_jobs_that_no_notification_told_of_are_found_by_looks_for_all(
    listening: Listening,
) -> None:
    queues = [f"q{number}" for number in range(20)]
    async with Idle(*queues) as idle:
        listening.is_deaf = True
        listening.looks.clear()
        for queue in queues:
            await worker_queue(queue).enqueue(1)

        handled = [await idle.handled.get() for _ in queues]

    assert sorted(handled) == sorted(queues)
    assert max(map(len, listening.looks)) > 1, "each queue was looked at by itself"


async def test_a_claim_of_another_process_is_waited_for_until_it_expires(
    listening: Listening,
) -> None:
    async with Idle("q") as idle:
        listening.is_deaf = True
        queue = worker_queue("q")
        await queue.enqueue(1)
        claim = await queue.claim_next("another", "400ms")
        if claim is None:  # the consumer here was faster
            assert await idle.handled.get() == "q"
            return
        listening.is_deaf = False

        assert await idle.handled.get() == "q"

    with pytest.raises(ClaimLost):
        await claim.ack()


async def test_a_store_that_cannot_be_read_is_looked_at_no_more_often(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(queues: tuple[str, ...]) -> Any:
        listening.looks.append(queues)
        raise StorageBusy("the store does not answer")

    async with Idle("q") as idle:
        looks = idle.consumers[0]._runtime.service(IdleLooks)
        monkeypatch.setattr("harn.storage.queue.claimable.look_at", fail)
        monkeypatch.setattr(Store, "mark", lambda store: None)
        looks._due_at = looks._clock.monotonic()  # a job is due, and no look can find it
        listening.looks.clear()
        while len(listening.looks) < 3:
            await asyncio.sleep(0.01)

        assert looks._due_at is None, "each look would be followed by the next one at once"
        monkeypatch.setattr("harn.storage.queue.claimable.look_at", look_at)
        listening.is_deaf = True
        await worker_queue("q").enqueue(1)
        assert await idle.handled.get() == "q"


@pytest.mark.parametrize("storage_url", ["sqlite"], indirect=True)
async def test_nothing_is_read_while_nothing_is_written(listening: Listening) -> None:
    """Only SQLite can tell without a read that nothing was written."""
    async with Idle("one", "two"):
        store = worker_queue("one").store

        async def ticks(count: int) -> None:
            after = listening.marks + count
            while listening.marks < after:
                await asyncio.sleep(0.01)

        before: object | None = None
        while before is None or before != store.mark():  # until nothing else writes meanwhile
            before = store.mark()
            await ticks(3)  # the first of them may look: its mark is new
            looks = len(listening.looks)
            await ticks(10)

        assert len(listening.looks) == looks


async def test_cancelled_consumers_leave_no_look_behind(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Idle("one", "two") as idle, Idle("last") as others:
        looks = others.consumers[0]._runtime.service(IdleLooks)
        for task in idle._running:
            task.cancel()
        await asyncio.wait(idle._running)
        idle._running.clear()
        while list(looks._waiting) != ["last"]:
            await asyncio.sleep(0.01)
        assert looks._timer or looks._looking

    assert not looks._waiting and looks._timer is None
    assert looks._look not in looks._store._on_hint
