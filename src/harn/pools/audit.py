"""The pool's receipts on `lifecycle.pool.audit`, made from plain values when they are read.

A receipt must not keep its task alive (the log remembers longer than a pool may), and must say
the same whenever it is read, so each carries the few values it needs and nothing else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harn import topics
from harn.eventlog import EventLog
from harn.pools.backpressure import Evict, RejectNew
from harn.pools.names import Names, iso_text
from harn.pools.task import PoolTask

SUBMIT_HEADERS = {"schema": "harn.pool_submit.v1"}
DEQUEUE_HEADERS = {"schema": "harn.pool_dequeue.v1"}
DROP_HEADERS = {
    policy: {"schema": "harn.pool_drop.v1", "policy": policy}
    for policy in ("drop_oldest", "drop_newest", "ring_buffer")
}


class Submitted(msgspec.Struct, gc=False):
    """The receipt of one accepted submit."""

    names: Names
    seq: int
    ms: int
    priority: int
    key: str | None
    idempotency_key: str | None
    by: str

    def __call__(self) -> dict[str, Any]:
        return {
            "pool_id": self.names.id,
            "pool": self.names.name,
            "task_id": self.names.task(self.ms, self.seq),
            "submitted_at": iso_text(self.ms),
            "priority": self.priority,
            "key": self.key,
            "idempotency_key": self.idempotency_key,
            "submitted_by": self.by,
        }


class Dequeued(msgspec.Struct, gc=False):
    """The receipt of one start."""

    names: Names
    seq: int
    ms: int
    at: int
    slot: int

    def __call__(self) -> dict[str, Any]:
        return {
            "pool_id": self.names.id,
            "pool": self.names.name,
            "task_id": self.names.task(self.ms, self.seq),
            "dequeued_at": iso_text(self.at),
            "queued_for_ms": max(0, self.at - self.ms),
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
