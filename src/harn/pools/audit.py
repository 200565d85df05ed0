"""The pool's receipts on `lifecycle.pool.audit`, made from plain values when they are read.

A receipt must not keep its task alive (the log keeps receipts longer than a pool its tasks), and
must say the same whenever it is read, so each carries the few values it needs and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from harn import topics
from harn.eventlog import EventLog
from harn.pools.backpressure import Evict, RejectNew
from harn.pools.task_ids import Names, iso_text

if TYPE_CHECKING:
    from harn.pools.task import PoolTask

DROP_HEADERS = {
    policy: {"schema": "harn.pool_drop.v1", "policy": policy}
    for policy in ("drop_oldest", "drop_newest", "ring_buffer")
}


class SubmitReceipt(msgspec.Struct, gc=False, frozen=True):
    """The payload of a `pool_submit` record."""

    pool_id: str
    pool: str
    task_id: str
    submitted_at: str
    priority: int
    key: str | None
    idempotency_key: str | None
    submitted_by: str


class DequeueReceipt(msgspec.Struct, gc=False, frozen=True):
    """The payload of a `pool_dequeue` record."""

    pool_id: str
    pool: str
    task_id: str
    dequeued_at: str
    queued_for_ms: int
    slot_index: int


class Submitted(msgspec.Struct, gc=False, frozen=True):
    """What was submitted, by whom and when: a receipt, and what the task's handle starts from.

    Every task has one for life, and so have its snapshots. Strings and numbers only, so the
    garbage collector need not look at it.
    """

    names: Names
    seq: int
    at: int
    priority: int
    key: str | None
    idempotency_key: str | None
    by: str

    kind: ClassVar[str] = "pool_submit"
    headers: ClassVar[dict[str, str]] = {"schema": "harn.pool_submit.v1"}

    @property
    def task_id(self) -> str:
        """The id of the task."""
        return self.names.task(self.at, self.seq)

    def __call__(self) -> SubmitReceipt:
        names, at = self.names, iso_text(self.at)
        task_id, by = self.task_id, self.by
        return SubmitReceipt(
            names.id, names.name, task_id, at, self.priority, self.key, self.idempotency_key, by
        )


class Dequeued(msgspec.Struct, gc=False, frozen=True):
    """The receipt of one start."""

    submitted: Submitted
    at: int
    slot: int

    kind: ClassVar[str] = "pool_dequeue"
    headers: ClassVar[dict[str, str]] = {"schema": "harn.pool_dequeue.v1"}

    def __call__(self) -> DequeueReceipt:
        submitted, at = self.submitted, self.at
        names, waited = submitted.names, at - submitted.at
        if waited < 0:  # the clock was set back
            waited = 0
        return DequeueReceipt(
            names.id, names.name, submitted.task_id, iso_text(at), waited, self.slot
        )


def note_drop(
    log: EventLog,
    victim: PoolTask,
    replacement: PoolTask | None,
    decision: Evict | RejectNew,
    depth: int,
    max_depth: int | None,
) -> None:
    """Record that *victim* was dropped from a queue *depth* deep, for *replacement* if any."""
    assert victim._finished_ms is not None
    receipt = {
        "pool_id": victim.pool_id,
        "pool": victim.pool,
        "task_id": victim.id,
        "replacement_task_id": None if replacement is None else replacement.id,
        "reason": decision.reason,
        "policy": decision.policy,
        "queue_depth": depth,
        "max_depth": max_depth,
        "occurred_at": iso_text(victim._finished_ms),
    }
    log.record(topics.POOL_AUDIT, "pool_drop", receipt, DROP_HEADERS[decision.policy])
