"""What can be seen of pools and their tasks: frozen records, JSON-ready on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from harn.pools.backpressure import BackpressurePolicy
from harn.pools.strategies import Strategy

TaskStatus = Literal["queued", "running", "completed", "failed", "rejected", "cancelled"]
TERMINAL: tuple[TaskStatus, ...] = ("completed", "failed", "rejected", "cancelled")


class TaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A pool task as it stood at one moment. What does not apply is None.

    *result_omitted* says that the result was no JSON and did not survive a restart; *result* is
    then its description.
    """

    id: str
    pool: str
    pool_id: str
    status: TaskStatus
    priority: int
    key: str | None
    labels: dict[str, str]
    idempotency_key: str | None
    submitted_at: str
    submitted_by: str
    started_at: str | None = None
    finished_at: str | None = None
    result: Any = None
    error: str | None = None
    rejection_reason: str | None = None
    rejection_policy: str | None = None
    stale_reason: str | None = None
    result_omitted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot under the spec's names; what is not set is left out."""
        always = ("id", "pool", "pool_id", "status", "priority", "key")
        shown: dict[str, Any] = {"_type": "pool_task"}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "result":
                if self.status == "completed":
                    shown[name] = value
            elif name in always or value:
                shown[name] = value
        return shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """A pool as it stood at one moment: what it was told, its counts, its tasks."""

    id: str
    name: str
    max_concurrent: int
    created_at: str
    active: int
    queued: int
    completed: int
    failed: int
    rejected: int
    cancelled: int
    total: int
    blocked_submitters: int
    tasks: list[TaskSnapshot] = field(default_factory=list)
    queue: Strategy
    backpressure: BackpressurePolicy
    scope: str
    scope_id: str | None
    stale_after_ms: int
    durable: bool
    config: dict[str, Any]

    @property
    def queue_strategy(self) -> str:
        """The queue strategy by its name."""
        return self.queue.kind

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot, JSON-ready as far as the tasks' results are."""
        shown: dict[str, Any] = {"_type": "pool"}
        for name in self.__slots__:
            shown[name] = getattr(self, name)
        shown["tasks"] = [task.as_dict() for task in self.tasks]
        shown["queue"] = self.queue.as_dict()
        shown["queue_strategy"] = self.queue.kind
        shown["backpressure"] = self.backpressure.as_dict()
        if self.scope_id is None:
            del shown["scope_id"]
        return shown
