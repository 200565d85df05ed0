"""The pool's receipts on `lifecycle.pool.audit`, made from plain values when they are read.

A receipt must not keep its task alive (the log remembers longer than a pool may), and must say
the same whenever it is read, so each carries the few values it needs and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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

    def __call__(self) -> dict[str, Any]:
        return {
            "pool_id": self.names.id,
            "pool": self.names.name,
            "task_id": self.task_id,
            "submitted_at": iso_text(self.at),
            "priority": self.priority,
            "key": self.key,
            "idempotency_key": self.idempotency_key,
            "submitted_by": self.by,
        }


class Dequeued(msgspec.Struct, gc=False, frozen=True):
    """The receipt of one start."""

    submitted: Submitted
    at: int
    slot: int

    kind: ClassVar[str] = "pool_dequeue"
    headers: ClassVar[dict[str, str]] = {"schema": "harn.pool_dequeue.v1"}

    def __call__(self) -> dict[str, Any]:
        return {
            "pool_id": self.submitted.names.id,
            "pool": self.submitted.names.name,
            "task_id": self.submitted.task_id,
            "dequeued_at": iso_text(self.at),
            "queued_for_ms": max(0, self.at - self.submitted.at),
            "slot_index": self.slot,
        }


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
