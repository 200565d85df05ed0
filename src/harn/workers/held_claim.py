"""A claim: a consumer's hold on one job, and what it may do with it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from harn.durable_work import StepRecord
from harn.duration import Duration, to_ms
from harn.error_text import message_of
from harn.errors import ClaimLost, InvalidOption
from harn.storage import MAX_PAYLOAD, encode
from harn.storage.queue import ClaimedJob, Settlement, SettlementResult, job_charges
from harn.unsettled_sources import PartialHandoff, UnsettledSources
from harn.workers.failures import Failure, failure_of, log_failure
from harn.workers.records import Job, check_cost, check_reason, check_ttl

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.workers.queue import WorkerQueue


SEAMS = {
    "acking": "the settlement that acks",
    "as_handoff": "the job as `unsettled_state` lists it",
    "asking": "the settlement of any other action",
    "claimed_at_ms": "when it was made, by the store's clock",
    "consumer_id": "the consumer that made it",
    "failing": "the settlement that fails",
    "record_step": "records a step of the job under it",
    "ttl_ms": "how long it lives without a renewal",
}
"""Attributes of a `Claim` that consumers use, and what each is for."""


class Claim:
    """A consumer's hold on a job, until `expires_at_ms`.

    The four actions return True when they were carried out, and False when this claim or its job
    was already settled; they raise `ClaimLost` when another consumer has claimed the job since.
    An expired claim that no other consumer has taken over can still do all of them.

    >>> import harn
    >>> async def main() -> int:
    ...     queue = harn.worker_queue("triage")
    ...     await queue.enqueue({"pr": 1984})
    ...     claim = await queue.claim_next("me")
    ...     await claim.ack("looks good")
    ...     return (await queue.summary()).acked
    >>> harn.run(main)
    1
    """

    def __init__(
        self, queue: WorkerQueue, job: Job, claimed: ClaimedJob, consumer_id: str, ttl_ms: int
    ) -> None:
        self.job = job
        self.attempt: int = claimed.attempts
        self.claim_id: str = claimed.claim_id
        self.consumer_id = consumer_id
        self.ttl_ms: int = ttl_ms
        self.expires_at_ms: int = claimed.expires_at
        self.claimed_at_ms: int = claimed.claimed_at
        self._queue = queue
        self._began = queue.runtime.clock.monotonic()

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

    async def ack(self, outcome: Any = None, cost: float | None = None) -> bool:
        """Settle the job as done; *outcome* goes to the responses with the same commit.

        What is not JSON is kept as text and marked. *cost* is what the job really cost: where the
        policy charges cost, its key is charged that instead of what was expected. Cancelling may
        leave the job acked.
        """
        if cost is not None:
            check_cost(cost)
        return (await self._do(self.acking(outcome, cost))).settled == "done"

    async def fail(self, error: BaseException | str, *, delay: Duration | None = None) -> bool:
        """Record a failed attempt; the job waits for the claim's expiry, or for *delay*.

        On its last attempt the job goes to the dead letters. Cancelling may leave it failed.
        """
        failure = failure_of(error)
        delay_ms = None if delay is None else to_ms(delay, "delay")
        result = await self._do(self.failing(failure, delay_ms=delay_ms))
        if result.settled == "done":
            log_failure(self.job, failure, dead=result.dead)
        return result.settled == "done"

    async def release(self, reason: str | None = None, delay: Duration | None = None) -> bool:
        """Release the job without using up an attempt; after *delay* it can be claimed again.

        Cancelling may leave it released.
        """
        check_reason(reason)
        delay_ms = None if delay is None else to_ms(delay, "delay")
        asking = self.asking("release", reason=reason, delay_ms=delay_ms)
        return (await self._do(asking)).settled == "done"

    async def record_step(self, step: StepRecord) -> None:
        """Record *step* of the job in the transaction that looks at this claim.

        `ClaimLost` if the claim is lost or settled. Cancelling does not prevent it: what was done
        must be known to the next attempt.
        """
        self._queue.runtime.check_here()
        answer = _Kept(asyncio.get_running_loop())
        self._queue.operations.settle_into(self.asking("step", step=step), answer)
        result = await answer.future
        if result.settled != "done":
            raise lost(self.job, result)

    def asking(self, action: Any, **details: Any) -> Settlement:
        """Return the settlement that does *action* with this claim."""
        return Settlement(action, self.job.id, self.claim_id, self.consumer_id, **details)

    def acking(self, outcome: Any, cost: float | None = None) -> Settlement:
        """Return the settlement that acks with *outcome*; *cost* is what the job really cost."""
        encoded, omitted = encode_outcome(outcome)
        return self.asking(
            "ack",
            outcome=encoded,
            outcome_omitted=omitted,
            handler_ms=self._handler_ms(),
            cost=cost,
            charge=self._charge(cost),
        )

    def failing(
        self,
        failure: Failure,
        *,
        delay_ms: int | None = None,
        final: bool = False,
        cost: float | None = None,
    ) -> Settlement:
        """Return the settlement that fails with *failure*; *cost* is what the attempt cost."""
        return self.asking(
            "fail",
            error=failure.text,
            error_type=failure.type,
            error_message=failure.message,
            traceback=failure.traceback,
            delay_ms=delay_ms,
            final=final,
            handler_ms=self._handler_ms(),
            cost=cost,
            charge=self._charge(cost),
        )

    def _charge(self, cost: float | None) -> int | None:
        """Return what a job that cost *cost* is charged; None if that is not known or charged."""
        policy = self._queue.policy
        if cost is None or not policy.charges_cost:
            return None
        return policy.charge_of(job_charges.millionths(cost))

    def _handler_ms(self) -> int:
        """Return the time since the claim: a consumer starts the handler at once."""
        return int((self._queue.runtime.clock.monotonic() - self._began) * 1000)

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

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in SEAMS]

    def __repr__(self) -> str:
        return f"<Claim {self.job.queue}/{self.job.id} attempt {self.attempt}>"


class ClaimsByHand:
    """The claims of callers of `claim_next` and `claim_many` that are not settled.

    A claim that its caller has dropped is not kept here; it expires in the store.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._claims: weakref.WeakSet[Claim] = weakref.WeakSet()
        self.add: Callable[[Claim], None] = self._claims.add
        self.discard: Callable[[Claim], None] = self._claims.discard
        runtime.service(UnsettledSources).add("partial_handoffs", self._handoffs)

    def _handoffs(self) -> list[PartialHandoff]:
        now = self._runtime.clock.now_ms()
        held = sorted(self._claims, key=lambda claim: (claim.job.queue, claim.job.id))
        return [claim.as_handoff(now) for claim in held]


def encode_outcome(outcome: Any) -> tuple[bytes, bool]:
    """Encode what a handler returned; what is not JSON becomes text, and is marked."""
    if outcome is None:
        return b"null", False
    try:
        return encode("outcome", outcome, MAX_PAYLOAD), False
    except InvalidOption:
        return encode("outcome", message_of(outcome), MAX_PAYLOAD), True


def lost(job: Job, result: SettlementResult) -> ClaimLost:
    """Return the error for a claim that another consumer has taken over, or that is settled."""
    why = result.note or "it was settled"
    return ClaimLost(f"the claim on job {job.id} of queue {job.queue!r} is lost: {why}")


class _Kept:
    """Receives the answer to a settlement that is carried out even if its caller is cancelled."""

    __slots__ = ("future",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[SettlementResult] = loop.create_future()

    def done(self) -> bool:
        """Return False: the settlement is wanted, also if no caller waits for it."""
        return False

    def set_result(self, result: SettlementResult) -> None:
        """Pass the result to the caller, if it still waits."""
        if not self.future.done():
            self.future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        """Pass the error to the caller, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def cancel(self) -> None:
        """Note that the store was closed before it answered."""
        self.future.cancel()
