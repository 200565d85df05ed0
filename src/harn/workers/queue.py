"""A worker queue: put jobs in, claim them, settle the claims.

The queue lives in the runtime's store, and every process that opens the same store shares it. A
claim is a lease with an expiry: its consumer renews it while the handler runs, then acks, fails or
releases it. A claim that another consumer has taken over raises `ClaimLost`.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from harn.checks import whole_number
from harn.current import current_runtime
from harn.duration import Duration, to_ms
from harn.errors import ClaimLost, InvalidOption
from harn.storage import Store, encode
from harn.storage.queue import (
    ClaimedJob,
    Claiming,
    QueueCounts,
    Settlement,
    SettlementResult,
    count_queue,
    purge_jobs,
    queue_names,
    wake_queue,
)
from harn.topics import check_queue_name, queue_topics
from harn.unsettled import PartialHandoff, UnsettledSources
from harn.workers.failures import Failure, failure_of, log_failure, text_of
from harn.workers.fairshare import chooser, first_look
from harn.workers.queue_operations import OperationsByQueue, QueueOperations
from harn.workers.records import (
    MAX_RECORD,
    EnqueueReceipt,
    Job,
    NewJob,
    QueueSummary,
    check_consumer,
    check_ttl,
    draft_job,
    read_job,
)
from harn.workers.scheduler_policy import SchedulerPolicy

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger = logging.getLogger("harn.workers")

MOST_AT_ONCE = 1000


class Claim:
    """A consumer's hold on a job, until `expires_at_ms`.

    The four actions return True when they were carried out, and False when this claim or its job
    was already settled; they raise `ClaimLost` when another consumer has claimed the job since.
    An expired claim that no other consumer has taken over can still do all of them.
    """

    def __init__(
        self, queue: WorkerQueue, job: Job, claimed: ClaimedJob, consumer_id: str, ttl_ms: int
    ) -> None:
        self.job = job
        self.attempt = claimed.attempts
        self.claim_id = claimed.claim_id
        self.consumer_id = consumer_id
        self.ttl_ms = ttl_ms
        self.expires_at_ms = claimed.expires_at
        self.claimed_at_ms = claimed.claimed_at
        self._queue = queue

    async def renew(self, ttl: Duration | None = None) -> bool:
        """Hold the job for *ttl* (what it was claimed for, unless given) from now on.

        Cancelling may leave it renewed.
        """
        if ttl is not None:
            self.ttl_ms = check_ttl(ttl)
        result = await self._do(self.asking("renew", ttl_ms=self.ttl_ms))
        if result.settled == "done":
            self.expires_at_ms = result.expires_at
        return result.settled == "done"

    async def ack(self, outcome: Any = None) -> bool:
        """Settle the job as done; *outcome* goes to the responses with the same commit.

        What is not JSON is kept as text and marked. Cancelling may leave the job acked.
        """
        return (await self._do(self.acking(outcome))).settled == "done"

    async def fail(self, error: BaseException | str, *, delay: Duration | None = None) -> bool:
        """Record a failed attempt; the job waits for the claim's expiry, or for *delay*.

        On its last attempt the job goes to the dead letters. Cancelling may leave it failed.
        """
        failure = failure_of(error)
        result = await self._do(self.failing(failure, delay=delay))
        if result.settled == "done":
            log_failure(self.job, failure, dead=result.dead)
        return result.settled == "done"

    async def release(self, reason: str | None = None, delay: Duration | None = None) -> bool:
        """Release the job without using up an attempt; after *delay* it can be claimed again.

        Cancelling may leave it released.
        """
        if reason is not None and not isinstance(reason, str):
            raise InvalidOption("reason", reason, "text, or None")
        delay_ms = None if delay is None else to_ms(delay, "delay")
        asking = self.asking("release", reason=reason, delay_ms=delay_ms)
        return (await self._do(asking)).settled == "done"

    def asking(self, action: Any, **details: Any) -> Settlement:
        """Return the settlement that does *action* with this claim."""
        return Settlement(action, self.job.id, self.claim_id, self.consumer_id, **details)

    def acking(self, outcome: Any) -> Settlement:
        """Return the settlement that acks with *outcome*."""
        encoded, omitted = encode_outcome(outcome)
        return self.asking("ack", outcome=encoded, outcome_omitted=omitted)

    def failing(
        self, failure: Failure, *, delay: Duration | None = None, final: bool = False
    ) -> Settlement:
        """Return the settlement that fails with *failure*."""
        return self.asking(
            "fail",
            error=failure.text,
            error_type=failure.type,
            error_message=failure.message,
            traceback=failure.traceback,
            delay_ms=None if delay is None else to_ms(delay, "delay"),
            final=final,
        )

    async def _do(self, settlement: Settlement) -> SettlementResult:
        self._queue.runtime.check_here()
        result = await self._queue.operations.settle(settlement)
        if settlement.action != "renew" or result.settled == "lost":
            self._queue.claims_by_hand.discard(self)
        if result.settled == "lost":
            raise lost(self.job, result)
        return result

    def as_handoff(self, now_ms: int) -> PartialHandoff:
        """Describe the job as `unsettled_state` lists it."""
        return PartialHandoff(
            kind="job",
            id=str(self.job.id),
            name=self.job.queue,
            attempt=self.attempt,
            tenant_id=self.job.tenant_id,
            consumer_id=self.consumer_id,
            age_ms=max(0, now_ms - self.job.enqueued_at_ms),
        )

    def __repr__(self) -> str:
        return f"<Claim {self.job.queue}/{self.job.id} attempt {self.attempt}>"


class ClaimsByHand:
    """The claims that callers of `claim_next` and `claim_many` hold, until they settle them.

    A claim that its caller has dropped is not held here: the store lets it expire.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._claims: weakref.WeakSet[Claim] = weakref.WeakSet()
        self.add, self.discard = self._claims.add, self._claims.discard
        runtime.service(UnsettledSources).add("partial_handoffs", self._handoffs)

    def _handoffs(self) -> list[PartialHandoff]:
        now = self._runtime.clock.now_ms()
        held = sorted(self._claims, key=lambda claim: (claim.job.queue, claim.job.id))
        return [claim.as_handoff(now) for claim in held]


class WorkerQueue:
    """A named queue in the current runtime's store; made by `worker_queue`."""

    def __init__(self, runtime: Runtime, name: str, policy: SchedulerPolicy | None) -> None:
        if policy is not None and not isinstance(policy, SchedulerPolicy):
            raise InvalidOption("policy", policy, "a SchedulerPolicy, or None")
        self.name = check_queue_name(name)
        self.topics = queue_topics(self.name)
        self.policy = policy or SchedulerPolicy.from_env()
        self.runtime = runtime
        self.store = runtime.service(Store)
        self.operations: QueueOperations = runtime.service(OperationsByQueue).of(self.name)
        self.claims_by_hand = runtime.service(ClaimsByHand)
        self._choose = chooser(self.policy)
        self._canonical = self.policy.canonical()

    async def enqueue(
        self,
        payload: Any,
        *,
        trigger_id: str | None = None,
        priority: str = "normal",
        tenant_id: str | None = None,
        binding_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        dedupe_key: str | None = None,
        not_before: datetime | Duration | None = None,
        max_attempts: int = 5,
    ) -> EnqueueReceipt:
        """Put a job into the queue; the receipt says how durable it is.

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
            headers=dict(headers) if isinstance(headers, Mapping) else headers,
            dedupe_key=dedupe_key,
            not_before=not_before,
            max_attempts=max_attempts,
        )
        [receipt] = await self.enqueue_many([job])
        return receipt

    async def enqueue_many(self, items: Iterable[Any]) -> list[EnqueueReceipt]:
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
        self.runtime.check_here()
        self.runtime.warn_if_nothing_is_kept("enqueue")
        entered = await self.operations.enqueue(jobs)
        topic, durability = self.topics.responses, self.store.durability
        return [
            EnqueueReceipt(self.name, id, topic, durability, duplicate) for id, duplicate in entered
        ]

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
        _check_number(n)
        ttl_ms = check_ttl(ttl)
        asked = self.operations.claim(lambda: self.claiming(consumer_id, n, ttl_ms))
        try:
            claimed = await asked
        except asyncio.CancelledError:
            # The answer may have come in the same turn as the cancel: its jobs are ours to release.
            if asked.done() and not asked.cancelled() and asked.exception() is None:
                self.operations.release(asked.result())
            raise
        claims = [self.open(one, consumer_id, ttl_ms) for one in claimed.jobs]
        held = [claim for claim in claims if claim is not None]
        for claim in held:
            self.claims_by_hand.add(claim)
        return held

    def claiming(
        self, consumer_id: str, n: int, ttl_ms: int, triggers: frozenset[str] | None = None
    ) -> Claiming:
        """Describe a claim by this queue's policy."""
        _check_number(n)
        ids = self.runtime.ids
        return Claiming(
            consumer=consumer_id,
            claim_ids=tuple([ids.uuid7() for _ in range(n)]),
            ttl_ms=ttl_ms,
            look=first_look(self.policy, self.name, n),
            choose=self._choose,
            policy=self._canonical,
            strategy=self.policy.strategy,
            dimension=self.policy.fairness_key,
            cap=self.policy.max_concurrent_per_key if self.policy.strategy == "drr" else 0,
            triggers=triggers,
        )

    def open(self, one: ClaimedJob, consumer_id: str, ttl_ms: int) -> Claim | None:
        """Read one claimed job; None if its record is damaged, which is the end of it."""
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
            self.operations.settle(bury).add_done_callback(_retrieve)
            return None
        return Claim(self, job, one, consumer_id, ttl_ms)

    async def summary(self) -> QueueSummary:
        """Count the queue, after ending expired claims. Cancelling leaves nothing behind."""
        counts = await self.counts()
        return QueueSummary(self.name) if counts is None else summarise(counts)

    async def counts(self) -> QueueCounts | None:
        """Count the queue in full, or return None if it was never used."""
        counts = await self.store.run(lambda: count_queue(self.name), write=False)
        if counts is not None and counts.is_due:
            while await self.store.run(lambda: wake_queue(self.name, self.runtime.ids.new)):
                pass
            counts = await self.store.run(lambda: count_queue(self.name), write=False)
        return counts

    async def purge(self, reason: str | None = None, *, by: str | None = None) -> int:
        """Take away every job that is ready or scheduled now; return how many that was.

        Jobs in flight stay, and so do jobs enqueued after the call. Cancelling leaves a part
        purged, oldest first.
        """
        for option, value in (("reason", reason), ("by", by)):
            if value is not None and not isinstance(value, str):
                raise InvalidOption(option, value, "text, or None")
        who = by or self.runtime.ambient.submitted_by
        total, after, until = 0, 0, None
        while True:
            gone, next_after, until = await self.store.run(
                lambda after=after, until=until: purge_jobs(  # type: ignore[misc]
                    self.name, after, until, who, reason, self.runtime.ids.new
                )
            )
            total += gone
            if next_after is None:
                return total
            after = next_after

    def __repr__(self) -> str:
        return f"<WorkerQueue {self.name!r} {self.policy.strategy}>"


def summarise(counts: QueueCounts) -> QueueSummary:
    """Return the summary of *counts*."""
    age = None if counts.oldest_at is None else max(0, counts.now - counts.oldest_at)
    return QueueSummary(
        counts.queue,
        counts.ready,
        counts.scheduled,
        counts.in_flight,
        counts.acked,
        counts.purged,
        counts.dead,
        counts.responses,
        age,
    )


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


def encode_outcome(outcome: Any) -> tuple[bytes, bool]:
    """Encode what a handler returned; what is not JSON becomes text, and is marked."""
    if outcome is None:
        return b"null", False
    try:
        return encode("outcome", outcome, MAX_RECORD), False
    except InvalidOption:
        return encode("outcome", text_of(outcome), MAX_RECORD), True


def _check_number(n: object) -> None:
    whole_number("n", n, least=1, most=MOST_AT_ONCE)


def lost(job: Job, result: SettlementResult) -> ClaimLost:
    """Return the error for a claim that another consumer has taken over."""
    return ClaimLost(f"the claim on job {job.id} of queue {job.queue!r} is lost: {result.note}")


def _retrieve(answer: asyncio.Future[Any]) -> None:
    """Retrieve a result that no caller waits for, so that its error is not reported as unseen."""
    if not answer.cancelled():
        answer.exception()
