"""A worker queue: put jobs in, claim them, settle the claims.

The queue lives in the runtime's store, and every process that opens the same store shares it. A
claim is a lease with an expiry: its consumer renews it while the handler runs, then acks, fails or
releases it. A claim that another consumer has taken over raises `ClaimLost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from harn.current import current_runtime
from harn.durable_types import types_of
from harn.duration import Duration
from harn.errors import InvalidOption, did_you_mean
from harn.ids import is_pool_id
from harn.naming import has_controls
from harn.option_checks import is_whole, whole_number
from harn.storage import Store
from harn.storage.queue import (
    Choose,
    ClaimedJob,
    Claiming,
    JobDraft,
    QueueCounts,
    Settlement,
    job_control,
    queue_names,
    stored_jobs,
)
from harn.teardown import retrieve
from harn.topics import QueueTopics, check_queue_name, queue_topics
from harn.workers.enqueue_on import enqueue_on, enter_committed
from harn.workers.enqueue_receipt import EnqueueReceipt
from harn.workers.function_jobs import JobOptions, call_job
from harn.workers.held_claim import Claim, ClaimsByHand
from harn.workers.job_cancel import cancel
from harn.workers.job_choice import chooser, first_look
from harn.workers.job_reads import JobReads
from harn.workers.job_state import JobState, Status, job_state
from harn.workers.queue_operations import OperationsByQueue, QueueOperations
from harn.workers.queue_reports import QueueSummary, count_in_full, end_expired, summarise
from harn.workers.records import (
    NewJob,
    Priority,
    check_consumer,
    check_name,
    check_reason,
    check_ttl,
    draft_job,
    read_job,
)
from harn.workers.retry_dead_jobs import retry_and_close_letter
from harn.workers.scheduler_policy import SchedulerPolicy

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.workers")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_AT_ONCE = 1000
LAST_ID = (1 << 63) - 1
TICKET = "ticket_"
"""How a ticket begins."""


SEAMS = {
    "claiming": "a claim by this queue's policy, for an operation",
    "claims_by_hand": "the claims of `claim_next` and `claim_many`",
    "counts": "the queue in full, for those that show it",
    "open": "reads a claimed job",
    "operations": "its enqueues, settlements and claims",
    "runtime": "the runtime that it belongs to",
    "store": "the store that keeps it",
    "topics": "the names of its topics",
}
"""Attributes of a `WorkerQueue` that the rooms of harn use, and what each is for."""


class WorkerQueue:
    """A named queue in the current runtime's store; made by `worker_queue`.

    >>> import harn
    >>> async def main() -> int:
    ...     queue = harn.worker_queue("triage")
    ...     await queue.enqueue({"pr": 1984})
    ...     return (await queue.summary()).ready
    >>> harn.run(main)
    1
    """

    def __init__(self, runtime: Runtime, name: str, policy: SchedulerPolicy | None) -> None:
        if policy is not None and not isinstance(policy, SchedulerPolicy):
            raise InvalidOption("policy", policy, "a SchedulerPolicy, or None")
        self.name: str = check_queue_name(name)
        if is_pool_id(name):
            raise InvalidOption("queue", name, "not the id of a pool; submit to the pool itself")
        self.topics: QueueTopics = queue_topics(self.name)
        self.policy: SchedulerPolicy = policy or SchedulerPolicy.from_env()
        self.runtime = runtime
        self.store: Store = runtime.service(Store)
        self.operations: QueueOperations = runtime.service(OperationsByQueue).of(self.name)
        self.claims_by_hand: ClaimsByHand = runtime.service(ClaimsByHand)
        self._choose: Choose = chooser(self.policy)
        self._canonical = self.policy.canonical()

    async def enqueue(
        self,
        payload: Any,
        *,
        trigger_id: str | None = None,
        priority: Priority = "normal",
        tenant_id: str | None = None,
        binding_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: str | None = None,
        not_before: datetime | Duration | None = None,
        max_attempts: int = 5,
        cost: float = 1,
        connection: object | None = None,
    ) -> EnqueueReceipt[Any]:
        """Put a job into the queue; the receipt says how durable it is.

        With *connection* the job is put in by the caller's own PostgreSQL transaction: it is in
        the queue when that commits, and never if it is rolled back. It is a psycopg
        `AsyncConnection`, or a SQLAlchemy `AsyncConnection` or `AsyncSession` over psycopg, to
        the runtime's database. The receipt has a ticket then, and no job id yet.

        Cancelling before its commit began means it was not enqueued; afterwards it may be.

        >>> import harn
        >>> async def main() -> int:
        ...     receipt = await harn.worker_queue("triage").enqueue({"pr": 1984}, priority="high")
        ...     return receipt.job_id
        >>> harn.run(main)
        1
        """
        job = NewJob(
            payload,
            trigger_id=trigger_id,
            priority=priority,
            tenant_id=tenant_id,
            binding_key=binding_key,
            headers=headers if headers is None else _copied(headers),
            dedupe_key=dedupe_key,
            not_before=not_before,
            max_attempts=max_attempts,
            cost=cost,
        )
        draft = draft_job(self.name, job)
        if connection is not None:
            return await self._enqueue_on(connection, draft)
        return self._receipt(*await self._enter(draft))

    @overload
    async def submit(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        **options: Unpack[JobOptions],
    ) -> EnqueueReceipt[T]: ...
    @overload
    async def submit(
        self, fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[JobOptions]
    ) -> EnqueueReceipt[T]: ...
    async def submit(  # type: ignore[misc]  # mypy does not see that the keywords are JobOptions
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        trigger_id: str | None = None,
        priority: Priority = "normal",
        tenant_id: str | None = None,
        binding_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: str | None = None,
        not_before: datetime | Duration | None = None,
        max_attempts: int = 5,
        cost: float = 1,
        connection: object | None = None,
    ) -> EnqueueReceipt[Any]:
        """Put a call of a `@durable` function into the queue, with the keywords of `enqueue`.

        Any consumer that has imported *fn* runs it: `drain` without a handler, or `harn worker`.
        Keyword arguments travel in a `functools.partial`. Arguments that do not fit *fn* are a
        `TypeError` here, and arguments that JSON would change an `InvalidOption`. The receipt's
        `result()` returns what the function returned, as JSON brings it back.

        Cancelling before its commit began means it was not enqueued; afterwards it may be.

        >>> import harn
        >>> @harn.durable(name="docs:double")
        ... async def double(n: int) -> int:
        ...     return 2 * n
        >>> async def main() -> int:
        ...     receipt = await harn.worker_queue("triage").submit(double, 21, priority="high")
        ...     await harn.drain("triage")
        ...     return await receipt.result()
        >>> harn.run(main)
        42
        """
        function, arguments = call_job(fn, args)
        job = NewJob(
            arguments,
            trigger_id=trigger_id,
            priority=priority,
            tenant_id=tenant_id,
            binding_key=binding_key,
            headers=headers if headers is None else _copied(headers),
            dedupe_key=dedupe_key,
            not_before=not_before,
            max_attempts=max_attempts,
            cost=cost,
            function=function.name,
        )
        draft = draft_job(self.name, job, is_exact=True)
        # A hundred calls may wait here: what they do not need is no work for the garbage collector.
        del args, arguments, job
        if connection is not None:
            receipt = await self._enqueue_on(connection, draft)
        else:
            receipt = self._receipt(*await self._enter(draft))
        if types_of(function.fn).has_result:
            return msgspec.structs.replace(receipt, function=function.name)
        return receipt

    async def _enqueue_on(self, connection: object, draft: JobDraft) -> EnqueueReceipt[Any]:
        self.policy.check_path("tenant_id", draft.tenant_id)
        return await enqueue_on(self, connection, draft)

    async def enqueue_many(self, items: Iterable[Any]) -> list[EnqueueReceipt[Any]]:
        """Put many jobs in, all or none: payloads, or `NewJob`s.

        Cancelling before the commit began means that none was enqueued.

        >>> import harn
        >>> async def main() -> list[int]:
        ...     queue = harn.worker_queue("triage")
        ...     return [each.job_id for each in await queue.enqueue_many(["a", "b"])]
        >>> harn.run(main)
        [1, 2]
        """
        jobs = [draft_job(self.name, item) for item in items]
        if not jobs:
            return []
        self._check_before_entering(jobs)
        return [self._receipt(*entered) for entered in await self.operations.enqueue_many(jobs)]

    def _enter(self, job: JobDraft) -> asyncio.Future[tuple[int, bool]]:
        """Ask for *job* to be entered: its id, and whether it was there before."""
        self._check_before_entering((job,))
        return self.operations.enqueue(job)

    def _check_before_entering(self, jobs: Sequence[JobDraft]) -> None:
        if self.policy.hierarchy is not None:
            for job in jobs:
                self.policy.check_path("tenant_id", job.tenant_id)
        self.runtime.check_here()
        self.runtime.warn_if_nothing_is_kept("enqueue")

    def _receipt(self, id: int, duplicate: bool) -> EnqueueReceipt[Any]:
        topic, durability = self.topics.responses, self.store.durability
        return EnqueueReceipt(self.name, id, topic, durability, duplicate)

    async def claim_next(self, consumer_id: str, ttl: Duration = "5m") -> Claim | None:
        """Claim the job whose turn it is, or return None. Cancelling releases the job.

        >>> import harn
        >>> async def main() -> bool:
        ...     queue = harn.worker_queue("triage")
        ...     await queue.enqueue("hello")
        ...     claim = await queue.claim_next("worker-a")
        ...     return await claim.ack("done")
        >>> harn.run(main)
        True
        """
        claims = await self.claim_many(consumer_id, 1, ttl)
        return claims[0] if claims else None

    async def claim_many(self, consumer_id: str, n: int, ttl: Duration = "5m") -> list[Claim]:
        """Claim up to *n* jobs at once, in the order of their turns.

        Cancelling releases the jobs.
        """
        self.runtime.check_here()
        check_consumer(consumer_id)
        ttl_ms = check_ttl(ttl)
        asked = self.operations.claim_now(self.claiming(consumer_id, n, ttl_ms))
        try:
            claimed = await asked
        except asyncio.CancelledError:
            # The claim may have succeeded in the same turn as the cancel: release its jobs.
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                self.operations.release(asked.result())
            raise
        held: list[Claim] = []
        for one in claimed.jobs:
            claim = self.open(one, consumer_id, ttl_ms)
            if claim is not None:
                held.append(claim)
                self.claims_by_hand.add(claim)
        return held

    def claiming(
        self,
        consumer_id: str,
        n: int,
        ttl_ms: int,
        triggers: frozenset[str] | None = None,
        lease: str | None = None,
    ) -> Claiming:
        """Describe a claim by this queue's policy."""
        whole_number("n", n, least=1, most=MOST_AT_ONCE)
        return Claiming(
            consumer=consumer_id,
            claim_ids=tuple(self.runtime.ids.uuid7s(n)),
            ttl_ms=ttl_ms,
            look=first_look(self.policy, self.name, n),
            choose=self._choose,
            policy=self._canonical,
            strategy=self.policy.strategy,
            dimension=self.policy.fairness_key,
            cap=self.policy.max_concurrent_per_key if self.policy.strategy == "drr" else 0,
            charge=self.policy.charge,
            hierarchy=self.policy.hierarchy or "",
            triggers=triggers,
            lease=lease,
        )

    def open(self, one: ClaimedJob, consumer_id: str, ttl_ms: int) -> Claim | None:
        """Read one claimed job; a job whose record is damaged is buried, and None is returned."""
        try:
            job = read_job(
                *(self.name, one.id, one.body, one.enqueued_at, one.attempts, one.max_attempts)
            )
        except (ValueError, TypeError) as error:
            text = f"the job's record is damaged: {error}"
            logger.error("queue %r: job %s is dead: %s", self.name, one.id, text)
            bury = Settlement(
                *("fail", one.id, one.claim_id, consumer_id),
                error=text,
                final=True,
            )
            self.operations.settle(bury).add_done_callback(retrieve)
            return None
        return Claim(self, job, one, consumer_id, ttl_ms)

    async def job(self, job_id: int | str) -> JobState | None:
        """Return what is known of a job, by its id or its ticket; None if the queue has none.

        A ticket is unknown before its transaction commits. Cancelling leaves nothing behind.

        >>> import harn
        >>> async def main() -> str:
        ...     queue = harn.worker_queue("triage")
        ...     receipt = await queue.enqueue({"pr": 1984})
        ...     return (await queue.job(receipt.job_id)).status
        >>> harn.run(main)
        'ready'
        """
        if isinstance(job_id, str) and job_id.startswith(TICKET):
            key: int | str | None = None if has_controls(job_id) else job_id
        else:
            key = _job_id(job_id)
        self.runtime.check_here()
        return None if key is None else await self.runtime.service(JobReads).state(self.name, key)

    async def jobs(
        self,
        *,
        status: Status | None = None,
        tenant_id: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[JobState]:
        """Return jobs by id, ascending, after the id *after*: of a status, a tenant, or all.

        Cancelling leaves nothing behind.
        """
        if status is not None and status not in stored_jobs.STATUSES:
            accepted = f"one of {', '.join(stored_jobs.STATUSES)}, or None"
            near = did_you_mean(status, stored_jobs.STATUSES)
            raise InvalidOption("status", status, accepted + near)
        check_name("tenant_id", tenant_id)
        whole_number("after", after, least=0)
        whole_number("limit", limit, least=1, most=MOST_AT_ONCE)
        self.runtime.check_here()
        if after > LAST_ID:
            return []
        look = partial(stored_jobs.page_of_jobs, self.name, status, tenant_id, after, limit)
        page = await self.store.run(look, write=False)
        if page.has_waiting:
            await enter_committed(self.runtime, self.name)
            page = await self.store.run(look, write=False)
        while page.is_due:
            await end_expired(self.runtime, self.name)
            page = await self.store.run(look, write=False)
        return [job_state(self.name, job) for job in page.jobs]

    async def cancel(self, job_id: int, reason: str | None = None) -> bool:
        """Settle a job as cancelled, whatever its status; False if it is settled or not there.

        A handler that works on it is cancelled. Cancelling this call may leave the job cancelled.
        """
        id = _job_id(job_id)
        return id is not None and await cancel(self.runtime, self.name, id, reason)

    async def retry(self, job_id: int) -> bool:
        """Make a dead job ready again, its attempts counted from zero; False if it is not dead.

        Its dead letter is closed with the same commit. Cancelling may leave the job ready.
        """
        id = _job_id(job_id)
        if id is None:
            return False
        self.runtime.check_here()
        who, ids = self.runtime.ambient.submitted_by, self.runtime.ids.new
        return await self.store.run(lambda: retry_and_close_letter(self.name, id, who, ids))

    async def pause(self, *, tenant_id: str | None = None, reason: str | None = None) -> bool:
        """Stop claims on the queue, or on one tenant's jobs; False if it was paused already.

        Jobs in flight continue, and new ones are accepted. The pause is stored for all processes.
        Cancelling may leave it paused.
        """
        check_name("tenant_id", tenant_id)
        check_reason(reason)
        self.runtime.check_here()
        who = self.runtime.ambient.submitted_by
        pause = partial(job_control.pause_queue, self.name, tenant_id, who, reason)
        changed = await self.store.run(pause)
        await self._carry_on()
        return changed

    async def resume(self, *, tenant_id: str | None = None) -> bool:
        """Allow claims again, on the queue or on one tenant's jobs; False if it was not paused.

        Cancelling may leave it resumed.
        """
        check_name("tenant_id", tenant_id)
        self.runtime.check_here()
        who = self.runtime.ambient.submitted_by
        changed = await self.store.run(lambda: job_control.resume_queue(self.name, tenant_id, who))
        await self._carry_on()
        return changed

    async def _carry_on(self) -> None:
        """Park a paused tenant's jobs, or make them ready again, until none is left."""
        while await self.store.run(lambda: job_control.carry_on_queue(self.name)):
            pass

    async def summary(self) -> QueueSummary:
        """Count the queue, after ending expired claims. Cancelling leaves nothing behind."""
        counts = await self.counts()
        return QueueSummary(self.name) if counts is None else summarise(counts)

    async def counts(self) -> QueueCounts | None:
        """Count the queue in full, or return None if it was never used."""
        return await count_in_full(self.runtime, self.name)

    async def purge(self, reason: str | None = None, *, by: str | None = None) -> int:
        """Purge every job that is ready or scheduled now; return how many.

        Jobs in flight stay, and so do jobs enqueued after the call. Cancelling leaves a part
        purged, oldest first.
        """
        check_reason(reason)
        check_reason(by, "by")
        who = by or self.runtime.ambient.submitted_by
        await enter_committed(self.runtime, self.name)
        total, after, until = 0, 0, None
        while True:
            gone, next_after, until = await self.store.run(
                lambda after=after, until=until: job_control.purge_jobs(  # type: ignore[misc]
                    self.name, after, until, who, reason, self.runtime.ids.new
                )
            )
            total += gone
            if next_after is None:
                return total
            after = next_after

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in SEAMS]

    def __repr__(self) -> str:
        return f"<WorkerQueue {self.name!r} {self.policy.strategy}>"


def worker_queue(name: str, policy: SchedulerPolicy | None = None) -> WorkerQueue:
    """Return the queue *name* of the current runtime's store.

    *policy* says how this process's claims share the queue; without one, the environment's
    `HARN_SCHEDULER_*` variables do, as they are at this call. A bad value is an `InvalidOption`.

    >>> import harn
    >>> async def main() -> str:
    ...     return harn.worker_queue("triage").name
    >>> harn.run(main)
    'triage'
    """
    return WorkerQueue(current_runtime(), name, policy)


async def worker_queues() -> list[QueueSummary]:
    """Return a summary of every queue in the current runtime's store, by name.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     await harn.worker_queue("triage").enqueue(1)
    ...     return [each.queue for each in await harn.worker_queues()]
    >>> harn.run(main)
    ['triage']
    """
    runtime = current_runtime()
    names = await runtime.service(Store).run(queue_names, write=False)
    return [await WorkerQueue(runtime, name, None).summary() for name in names]


def _job_id(id: object) -> int | None:
    """Return *id* if a job could have it."""
    if not is_whole(id):
        raise InvalidOption("job_id", id, "a job's id, a whole number")
    return id if 0 < id <= LAST_ID else None


def _copied(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return *headers* as they are now; `draft_job` refuses what is no mapping."""
    return dict(headers) if isinstance(headers, Mapping) else headers
