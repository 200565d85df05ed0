"""A consumer that has nothing to do leaves the store alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from harn import Job, Runtime, SchedulerPolicy, worker_queue
from harn.storage import Store
from harn.storage.engines.file.commit_journal import CommitJournal
from harn.storage.engines.postgres.operation_runner import OperationRunner
from harn.storage.engines.sqlite_session import Session
from harn.storage.queue.claimable import has_work, look_at
from harn.workers import Consumer
from harn.workers.queue_operations import QueueOperations

CAPPED = SchedulerPolicy(strategy="drr", max_concurrent_per_key=1)
FAIR = SchedulerPolicy(strategy="drr")
IN_TREE = SchedulerPolicy(strategy="drr", hierarchy="/", max_concurrent_per_key=1)


class CallCount:
    """How often a method was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> None:
        self.count = 0
        before = getattr(kind, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.count += self.counts(args[0])
            return before(*args, **options)

        monkeypatch.setattr(kind, name, counted)

    def counts(self, caller: Any) -> bool:
        """Tell whether a call by *caller* counts."""
        return True


class Commits(CallCount):
    """How many transactions have been committed, on whichever engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        engine = url.partition(":")[0]
        commits = {"file": (CommitJournal, "add"), "postgresql": (OperationRunner, "_flush")}
        super().__init__(monkeypatch, *commits.get(engine, (Session, "commit")))

    def counts(self, caller: Any) -> bool:
        """Tell whether *caller* commits something with this call."""
        if not isinstance(caller, OperationRunner):
            return True
        return ("COMMIT", {}) in caller._queued and caller._committing


@pytest.fixture
async def commits(storage_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Commits]:
    monkeypatch.setenv("HARN_LEASE_MS", "3600000")  # no lease is renewed while commits are counted
    monkeypatch.setenv("HARN_LEASE_RENEW_MS", "1200000")
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


async def a_branch_at_its_cap(hold: asyncio.Event, triggers: frozenset[str] | None) -> Consumer:
    queue = worker_queue("branch" if triggers is None else "branch-by-trigger", IN_TREE)
    for tenant in ("acme/bob", "acme/eve", "acme/eve"):
        await queue.enqueue(1, tenant_id=tenant, trigger_id="ours")
    if triggers is not None:
        await queue.enqueue(1, tenant_id="zoo", trigger_id="theirs")
    handler, options = holding(hold), {"stop_when_empty": False, "concurrency": 2}
    return Consumer(queue, handler, triggers=triggers, **options)  # type: ignore[arg-type]


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


async def a_paused_queue(hold: asyncio.Event) -> Consumer:
    queue = worker_queue("paused")
    await queue.enqueue(1)
    assert await queue.pause()
    return Consumer(queue, holding(hold), stop_when_empty=False)


async def a_paused_tenant(hold: asyncio.Event) -> Consumer:
    queue = worker_queue("paused-tenant", FAIR)
    for _ in range(2):
        await queue.enqueue(1, tenant_id="acme")
    assert await queue.pause(tenant_id="acme")
    await queue.enqueue(2, tenant_id="acme")
    return Consumer(queue, holding(hold), stop_when_empty=False)


async def a_function_of_others(hold: asyncio.Event) -> Consumer:
    queue = worker_queue("functions")
    await queue.enqueue(1, trigger_id="theirs")
    return Consumer(queue, None, stop_when_empty=False)


LOOKS = 20
"""How often each idle consumer looks at the store while commits are counted."""


async def test_consumers_with_nothing_to_do_look_and_commit_nothing(
    commits: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, looks = asyncio.Event(), Counter[str]()

    def counted(queues: tuple[str, ...]) -> Any:
        looks.update(queues)
        return look_at(queues)

    monkeypatch.setattr("harn.storage.queue.claimable.look_at", counted)
    monkeypatch.setattr("harn.workers.idle_consumers.POLL", 0.01)
    monkeypatch.setattr(Store, "mark", lambda self: None)
    claims = CallCount(monkeypatch, QueueOperations, "claim")
    consumers = [
        await nothing_left(hold),
        await one_job_for_others(None, hold),
        await one_job_for_others(FAIR, hold),
        await a_key_at_its_cap(hold),
        await a_branch_at_its_cap(hold, None),
        await a_branch_at_its_cap(hold, frozenset({"ours"})),
        await one_job_for_later(hold),
        await a_paused_queue(hold),
        await a_paused_tenant(hold),
        await a_function_of_others(hold),
        Consumer(worker_queue("unknown"), holding(hold), stop_when_empty=False),
    ]
    queues = [each.queue.name for each in consumers]

    async def all_have_looked(times: int) -> None:
        looks.clear()
        while not all(looks[queue] >= times for queue in queues):
            await asyncio.sleep(0.01)

    running = [asyncio.create_task(each.run()) for each in consumers]
    await all_have_looked(3)  # what their own last commits have set off has come to its end
    commits.count = claims.count = 0

    await all_have_looked(LOOKS)

    idle = commits.count, claims.count
    hold.set()
    for each in consumers:
        each.stop()
    await asyncio.gather(*running)
    assert idle == (0, 0)


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


async def test_work_in_a_tree_is_only_what_no_branch_at_its_cap_holds_up(commits: Commits) -> None:
    queue = worker_queue("q", IN_TREE)
    for tenant, trigger in (("a/x/1", "ours"), ("a/x/2", "ours"), ("b", "theirs")):
        await queue.enqueue(1, tenant_id=tenant, trigger_id=trigger)

    async def found(*triggers: str) -> bool:
        look = partial(has_work, "q", frozenset(triggers) if triggers else None)
        return (await queue.store.run(look, write=False))[0]

    first, _ = await queue.claim_many("me", 9)
    assert not await found() and not await found("ours") and not await found("theirs")
    await queue.enqueue(1, tenant_id="c/y", trigger_id="theirs")
    assert await found() and await found("theirs") and not await found("ours")
    assert first.job.tenant_id == "a/x/1"
    await first.ack()
    assert await found("ours")


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
