"""The pool's receipts on `lifecycle.pool.audit`, made from plain values when they are read.

A receipt must not keep its task alive (the log remembers longer than a pool may), and must say
the same whenever it is read, so each carries the few values it needs and nothing else.
"""

from __future__ import annotations

from typing import Any

from harn import topics
from harn.eventlog import EventLog
from harn.pools.backpressure import Evict, RejectNew
from harn.pools.task import PoolTask, iso_text, task_id

SUBMIT_HEADERS = {"schema": "harn.pool_submit.v1"}
DEQUEUE_HEADERS = {"schema": "harn.pool_dequeue.v1"}
DROP_HEADERS = {
    policy: {"schema": "harn.pool_drop.v1", "policy": policy}
    for policy in ("drop_oldest", "drop_newest", "ring_buffer")
}


class Names:
    """How a pool and its tasks are called in its receipts."""

    __slots__ = ("id", "name", "prefix", "salt")

    def __init__(self, id: str, name: str, prefix: str, salt: int) -> None:
        self.id = id
        self.name = name
        self.prefix = prefix
        self.salt = salt

    def task(self, ms: int, seq: int) -> str:
        """Return the id of the task submitted at *ms* as number *seq*."""
        return task_id(self.prefix, self.salt, ms, seq)


class Submitted:
    """The receipt of one accepted submit."""

    __slots__ = ("by", "idempotency_key", "key", "ms", "names", "priority", "seq")

    def __init__(
        self,
        names: Names,
        seq: int,
        ms: int,
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        by: str,
    ) -> None:
        self.names = names
        self.seq = seq
        self.ms = ms
        self.priority = priority
        self.key = key
        self.idempotency_key = idempotency_key
        self.by = by

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


class Dequeued:
    """The receipt of one start."""

    __slots__ = ("at", "ms", "names", "seq", "slot")

    def __init__(self, names: Names, seq: int, ms: int, at: int, slot: int) -> None:
        self.names = names
        self.seq = seq
        self.ms = ms
        self.at = at
        self.slot = slot

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
