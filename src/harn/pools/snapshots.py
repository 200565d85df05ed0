"""What can be seen of pools and their tasks: frozen records, JSON-ready on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec

from harn.pools.audit import Submitted
from harn.pools.backpressure import BackpressurePolicy
from harn.pools.queue_strategies import Strategy
from harn.pools.task_ids import iso_text
from harn.records import fields_of
from harn.telemetry.html import html_fields, html_table

if TYPE_CHECKING:
    # Only type checkers need the default, which Python itself has from 3.13 on.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

TaskStatus = Literal["queued", "running", "completed", "failed", "rejected", "cancelled"]
NO_LABELS: Mapping[str, str] = MappingProxyType({})
"""The labels of the many tasks that have none."""
TERMINAL: tuple[TaskStatus, ...] = ("completed", "failed", "rejected", "cancelled")


class TaskSnapshot(msgspec.Struct, Generic[T_co], frozen=True, repr_omit_defaults=True):
    """A pool task as it stood at one moment. What does not apply is None.

    Its id and its times are made from their numbers when they are read. *result_omitted*
    says that the result was not JSON and did not survive a restart; *result* describes it then.

    >>> import harn
    >>> async def main() -> tuple[str, int | None]:
    ...     async with await harn.pool_create(name="sums") as pool:
    ...         seen = await (await pool.submit(pow, 2, 5)).wait()
    ...         return seen.status, seen.result
    >>> harn.run(main)
    ('completed', 32)
    """

    _submitted: Submitted
    _started_ms: int | None
    _finished_ms: int | None
    status: TaskStatus
    _labels: Mapping[str, str] | None = None
    result: T_co | None = None
    error: str | None = None
    rejection_reason: str | None = None
    rejection_policy: str | None = None
    stale_reason: str | None = None
    result_omitted: bool = False

    @property
    def id(self) -> str:
        """The task's id."""
        return self._submitted.task_id

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self._submitted.names.name

    @property
    def pool_id(self) -> str:
        """The pool's id."""
        return self._submitted.names.id

    @property
    def priority(self) -> int:
        """The priority it was submitted with."""
        return self._submitted.priority

    @property
    def key(self) -> str | None:
        """The key it was submitted with."""
        return self._submitted.key

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels it was submitted with."""
        return self._labels or NO_LABELS

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key it was submitted with."""
        return self._submitted.idempotency_key

    @property
    def submitted_by(self) -> str:
        """Who submitted it."""
        return self._submitted.by

    @property
    def submitted_at(self) -> str:
        """When it was submitted."""
        return iso_text(self._submitted.at)

    @property
    def started_at(self) -> str | None:
        """When its closure began."""
        return None if self._started_ms is None else iso_text(self._started_ms)

    @property
    def finished_at(self) -> str | None:
        """When it reached its last status."""
        return None if self._finished_ms is None else iso_text(self._finished_ms)

    def as_dict(self) -> dict[str, Any]:
        """Return the snapshot under the spec's names.

        Fields that the spec shows are None if they are not set; others are left out.
        """
        shown: dict[str, Any] = {"_type": "pool_task"}
        for name in FIELDS:
            value = getattr(self, name)
            if name == "result":
                if self.status == "completed":
                    shown[name] = value
            elif value or name in SHOWN:
                shown[name] = value
        return shown

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"TaskSnapshot({shown})"

    def _repr_html_(self) -> str:
        return html_fields(f"task of pool {self.pool}", self.as_dict())


FIELDS = (
    "id",
    "pool",
    "pool_id",
    "status",
    "priority",
    "key",
    "labels",
    "idempotency_key",
    "submitted_at",
    "submitted_by",
    "started_at",
    "finished_at",
    "result",
    "error",
    "rejection_reason",
    "rejection_policy",
    "stale_reason",
    "result_omitted",
)
"""What a `TaskSnapshot` has, in the order in which it is shown."""
SHOWN = frozenset(("priority", "key", "error", "rejection_reason", "rejection_policy"))
"""Those that `as_dict` has although they are not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """A pool as it stood at one moment: its options, its counts, its tasks.

    >>> import harn
    >>> async def main() -> int:
    ...     async with await harn.pool_create(name="review") as pool:
    ...         await (await pool.submit(lambda: "fine"))
    ...         return pool.snapshot().completed
    >>> harn.run(main)
    1
    """

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
        shown = {"_type": "pool", **fields_of(self)}
        shown["tasks"] = [task.as_dict() for task in self.tasks]
        shown["queue"] = self.queue.as_dict()
        shown["queue_strategy"] = self.queue.kind
        shown["backpressure"] = self.backpressure.as_dict()
        return shown

    def _repr_html_(self) -> str:
        title = f"pool {self.name}, {self.queue.kind}, {self.max_concurrent} at once"
        counts = {name: getattr(self, name) for name in COUNTS}
        tasks = [
            [getattr(task, name) for name in ("id", "status", "key", "priority", "result", "error")]
            for task in self.tasks
        ]
        text = html_fields(title, counts)
        if not tasks:
            return text
        headings = ("task", "status", "key", "priority", "result", "error")
        return text + html_table("tasks", headings, tasks)


COUNTS = ("active", "queued", "completed", "failed", "rejected", "cancelled", "blocked_submitters")
"""What a pool counts, in the order in which a notebook shows it."""
