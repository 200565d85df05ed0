"""A consumer that has nothing to do leaves the store alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from harn import Job, Runtime, SchedulerPolicy, worker_queue
from harn.storage.engines.file.commit_journal import Journal
from harn.storage.engines.postgres.lane import Lane
from harn.storage.engines.sqlite_session import Session
from harn.storage.queue import has_work
from harn.workers import Consumer

CAPPED = SchedulerPolicy(strategy="drr", max_concurrent_per_key=1)
FAIR = SchedulerPolicy(strategy="drr")


class Commits:
    """How many transactions have been committed, on whichever engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        self.count = 0
        if url.startswith("file"):
            self._count_calls(monkeypatch, Journal, "add")
        elif url.startswith("postgres"):
            flush = Lane._flush

            def counted(lane: Any, *args: Any, **options: Any) -> Any:
                self.count += ("COMMIT", {}) in lane._queued and lane._committing
                return flush(lane, *args, **options)

            monkeypatch.setattr(Lane, "_flush", counted)
        else:
            self._count_calls(monkeypatch, Session, "commit")

    def _count_calls(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        before = getattr(kind, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += 1
            return before(*args, **options)

        monkeypatch.setattr(kind, name, counted)


@pytest.fixture
async def commits(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Commits]:
    async with Runtime(storage=storage_url):
        yield Commits(monkeypatch, storage_url)


def holding(hold: asyncio.Event) -> Callable[[Job], Any]:
    """A handler that waits until *hold* is set."""

    async def handler(job: Job) -> None:
        await hold.wait()

    return handler


async def one_job_for_others(policy: SchedulerPolicy | None, hold: asyncio.Event) -> Consumer:
    queue = worker_queue("foreign" if policy is None else "foreign-fair", policy)
    await queue.enqueue(1, trigger_id="theirs")
    return Consumer(queue, holding(hold), stop_when_empty=False, triggers=frozenset({"ours"}))


async def a_key_at_its_cap(hold: asyncio.Event) -> Consumer:
    queue = worker_queue("capped", CAPPED)
    for _ in range(3):
        await queue.enqueue(1, tenant_id="acme")

    return Consumer(queue, holding(hold), stop_when_empty=False, concurrency=2)


async def one_job_for_later(hold: asyncio.Event) -> Consumer:
    queue = worker_queue("later")
    await queue.enqueue(1, not_before="1h")
    return Consumer(queue, holding(hold), stop_when_empty=False)


async def nothing_left(hold: asyncio.Event) -> Consumer:
    queue = worker_queue("empty")
    await queue.enqueue(1)
    claim = await queue.claim_next("me")
    assert claim
    await claim.ack()
    return Consumer(queue, holding(hold), stop_when_empty=False)


async def test_consumers_with_nothing_to_do_commit_nothing_for_a_second(commits: Commits) -> None:
    hold = asyncio.Event()
    consumers = [
        await nothing_left(hold),
        await one_job_for_others(None, hold),
        await one_job_for_others(FAIR, hold),
        await a_key_at_its_cap(hold),
        await one_job_for_later(hold),
        Consumer(worker_queue("unknown"), holding(hold), stop_when_empty=False),
    ]
    running = [asyncio.create_task(each.run()) for each in consumers]
    while not all(each._is_empty and each._asking is None for each in consumers):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)  # what their own last commits have set off comes to its end
    commits.count = 0

    await asyncio.sleep(1)

    idle = commits.count
    hold.set()
    for each in consumers:
        each.stop()
    await asyncio.gather(*running)
    assert idle == 0


async def test_a_claim_that_chooses_nothing_commits_nothing(commits: Commits) -> None:
    queue = worker_queue("q")
    await queue.enqueue(1, not_before="1h")
    assert await queue.claim_next("me") is None  # the first one notes its policy
    commits.count = 0

    assert await queue.claim_next("me") is None

    assert commits.count == 0


async def test_a_claim_of_what_was_given_back_and_came_due_is_kept(commits: Commits) -> None:
    queue = worker_queue("q")
    receipt = await queue.enqueue(1, not_before="1ms")
    await asyncio.sleep(0.01)
    commits.count = 0

    claim = await queue.claim_next("me")

    assert claim is not None and claim.job.id == receipt.job_id
    assert commits.count == 1


async def test_work_is_only_what_the_claimers_triggers_can_handle(commits: Commits) -> None:
    queue = worker_queue("q", CAPPED)
    await queue.enqueue(1, trigger_id="theirs", tenant_id="a")

    async def found(*triggers: str) -> bool:
        look = partial(has_work, "q", frozenset(triggers) if triggers else None)
        return (await queue.store.run(look, write=False))[0]

    assert await found() and await found("theirs") and not await found("ours")
    await queue.enqueue(1, trigger_id="ours", tenant_id="b")
    assert await found("ours")
    claimed = queue.operations.claim(lambda: queue.claiming("me", 1, 60_000, frozenset({"ours"})))
    assert len((await claimed).jobs) == 1
    await queue.enqueue(1, trigger_id="ours", tenant_id="b")
    assert not await found("ours"), "its key is at the cap"
    assert await found("theirs", "ours")


async def test_a_job_that_a_consumer_can_handle_wakes_it_beside_one_that_it_cannot(
    commits: Commits,
) -> None:
    queue, seen = worker_queue("q"), asyncio.Event()

    async def handler(job: Job) -> None:
        seen.set()

    await queue.enqueue(1, trigger_id="theirs")
    consumer = Consumer(queue, handler, stop_when_empty=False, triggers=frozenset({"ours"}))
    running = asyncio.create_task(consumer.run())
    while not (consumer._is_empty and consumer._asking is None):
        await asyncio.sleep(0.01)

    await queue.enqueue(2, trigger_id="ours")

    await seen.wait()
    consumer.stop()
    assert (await running).acked == 1
