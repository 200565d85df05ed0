"""The end of a shared pool's task: sent to the store by the process that ran it, read by others.

A task has ended when the store says so. The process that ran it sends the end until the store has
taken it, or refuses it because the claim does not hold any more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from harn.pools.backpressure import (
    DROP_NEWEST,
    DROP_OLDEST,
    RING_LONGEST,
    RING_OLDEST,
    BackpressurePolicy,
)
from harn.pools.shared_records import DAMAGED, ending
from harn.pools.shared_work import End
from harn.pools.snapshots import TaskStatus
from harn.pools.task import PoolTask, Reloaded
from harn.storage.queue import shared_pools

if TYPE_CHECKING:
    from harn.pools.shared_pool_slots import SharedPoolSlots

logger: logging.Logger = logging.getLogger("harn.pools")

SEND_AGAIN_AFTER = 0.5
"""Seconds after which an end is sent again that the store did not answer."""
SETTLED = (shared_pools.ACKED, shared_pools.DEAD, shared_pools.PURGED, shared_pools.CANCELLED)


class TaskClaim:
    """The claim under which a task runs here."""

    __slots__ = ("claim_id", "is_ending", "lease", "queue_again")

    def __init__(self, claim_id: str, lease: str) -> None:
        self.claim_id: str = claim_id
        self.lease: str = lease
        self.is_ending: bool = False
        """Whether the end of this run is on its way to the store, or the run has not begun yet."""
        self.queue_again: bool = False
        """Whether a stop of the run lets the task be queued again."""


class Ending(End):
    """The end of a task on its way to the store, and what receives the answer."""

    __slots__ = ("_claim", "_result", "_slots", "_status", "_task")

    def __init__(
        self,
        slots: SharedPoolSlots,
        task: PoolTask,
        claim: TaskClaim,
        settlement: shared_pools.Settlement,
        status: TaskStatus,
        result: Any,
        *,
        is_stopped: bool = False,
    ) -> None:
        self.settlement = settlement  # as `End` does, without the call
        self.is_stopped = is_stopped
        self._slots = slots
        self._task = task
        self._claim = claim
        self._status = status
        self._result = result

    def done(self) -> bool:
        """Whether the end needs no answer: never."""
        return False

    def set_result(self, result: shared_pools.SettlementResult) -> None:
        """Do nothing: `landed` has applied the answer."""

    def landed(self, result: shared_pools.SettlementResult) -> None:
        """Apply the answer, before tasks start in the slots that have become free."""
        if not self._is_held():  # claimed again since, or lost with the lease
            self._slots.end_refused(self._task)
            return
        del self._slots.here[self._task]
        if result.settled == "done":
            self._slots.end_accepted(self._task, self, self._status, self._result)
        else:  # lost, or settled before: by a process that ended our claim, or by this very end
            self._slots.end_refused(self._task)

    def set_exception(self, error: BaseException) -> None:
        """Send the end again, as long as the claim may hold."""
        slots = self._slots
        if not self._is_held() or slots.state in ("closed", "dropped"):
            return
        clock = slots.runtime.clock
        clock.call_at(clock.monotonic() + SEND_AGAIN_AFTER, self.send, background=True)

    def send(self) -> None:
        """Send the end to the store, if the claim may hold."""
        if self._is_held():
            self._slots.work.add(self, self)

    def _is_held(self) -> bool:
        return self._slots.here.get(self._task) is self._claim

    def cancel(self) -> None:
        """Note that the operation was cancelled."""
        self.set_exception(asyncio.CancelledError())


def ending_of(
    slots: SharedPoolSlots,
    task: PoolTask,
    claim: TaskClaim,
    status: TaskStatus,
    result: Any,
    queue_again: bool,
) -> Ending:
    """Return the end of *task*, which ran here under *claim*; *queue_again* if it was stopped."""
    now = slots.now()
    started = now if task._started_ms is None else task._started_ms
    settlement = ending(task, claim.claim_id, claim.lease, status, result, started, now)
    is_stopped = status == "cancelled" and not queue_again
    return Ending(slots, task, claim, settlement, status, result, is_stopped=is_stopped)


class StoredEnd(msgspec.Struct, frozen=True):
    """How a task has ended, as the store has it."""

    status: TaskStatus
    result: Any = None
    """What its closure returned, or why it failed."""
    reason: tuple[str | None, str | None, str | None] | None = None
    """Why it was rejected, the policy that did it, or why it is stale."""
    started_ms: int | None = None


def stored_end(job: shared_pools.StoredJob, policy: BackpressurePolicy) -> StoredEnd:
    """Return how the task of *job*, which is settled, has ended."""
    answer = _Answered() if job.answer is None else _read_answer(job.answer, job.id)
    started = None if not answer.handled_at_ms else answer.handled_at_ms - answer.handler_ms
    if job.state == shared_pools.ACKED:
        text = msgspec.json.decode(answer.outcome) if answer.outcome_omitted else None
        return StoredEnd("completed", Reloaded(answer.outcome, text), started_ms=started)
    if job.state == shared_pools.CANCELLED:
        return StoredEnd("cancelled", started_ms=started)
    if job.state == shared_pools.PURGED:
        decision = drop_of(policy)
        return StoredEnd("rejected", None, (decision.reason, decision.policy, None), started)
    return _failed_end(job.history, started)


def _failed_end(history: str | None, started: int | None) -> StoredEnd:
    last = (msgspec.json.decode(history) if history else [{}])[-1]
    how, error = last.get("status"), last.get("error")
    if how == "expired":
        error = f"the process that ran it died: {shared_pools.CUT_OFF}"
        return StoredEnd("failed", error, (None, None, shared_pools.CUT_OFF), started)
    reason = (None, None, shared_pools.UNRUN) if how == shared_pools.UNRUN else None
    return StoredEnd("failed", error, reason, started)


def drop_of(policy: BackpressurePolicy) -> Any:
    """Return the decision of *policy* that drops a task, for its reason and its receipt."""
    if policy.kind == "ring_buffer":
        return RING_LONGEST if policy.evict == "longest" else RING_OLDEST
    return DROP_OLDEST if policy.on_full == "drop_oldest" else DROP_NEWEST


class _Answered(msgspec.Struct):
    """The response to a job, as far as a task needs it."""

    outcome: msgspec.Raw = msgspec.Raw(b"null")
    outcome_omitted: bool = False
    handled_at_ms: int = 0
    handler_ms: int = 0


def _read_answer(answer: bytes, id: int) -> _Answered:
    """Read the response to the job *id*; of a damaged one only that there was one is known."""
    try:
        return msgspec.json.decode(answer, type=_Answered)
    except msgspec.DecodeError as error:
        logger.warning("the result of job %d, a pool's task, cannot be read: %s", id, error)
        return _Answered(msgspec.Raw(msgspec.json.encode(DAMAGED)), outcome_omitted=True)
