"""What would be left undone if the pipeline ended now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from harn.pools.registry import PoolRegistry
from harn.pools.task import PoolTask
from harn.runtime import Runtime, current_runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPoolTask:
    """A pool task that has not ended."""

    id: str
    task_id: str
    pool_id: str
    pool_name: str
    status: str
    priority: int
    key: str | None
    idempotency_key: str | None
    submitted_at: str
    submitted_at_ms: int
    submitted_by: str
    started_at: str | None
    age_ms: int

    def as_dict(self) -> dict[str, Any]:
        """Return every field; unknown ones are None."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class UnsettledState:
    """Everything that is still under way, by kind."""

    suspended_subagents: list[Any] = field(default_factory=list)
    queued_triggers: list[Any] = field(default_factory=list)
    partial_handoffs: list[Any] = field(default_factory=list)
    in_flight_llm_calls: list[Any] = field(default_factory=list)
    pool_pending_tasks: list[PendingPoolTask] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return every list, JSON-ready."""
        return asdict(self)


class UnsettledSources:
    """Where a runtime asks what is unsettled; rooms above add their own buckets."""

    def __init__(self, runtime: Runtime) -> None:
        self._sources: dict[str, Callable[[], list[Any]]] = {}
        self.add("pool_pending_tasks", lambda: _pending(runtime))

    def add(self, bucket: str, source: Callable[[], list[Any]]) -> None:
        """Ask *source* for what belongs in *bucket*."""
        self._sources[bucket] = source

    def state(self) -> UnsettledState:
        """Ask all of them."""
        return UnsettledState(**{bucket: ask() for bucket, ask in self._sources.items()})


def unsettled_state() -> UnsettledState:
    """Return what is still under way in this runtime.

    `pool_pending_tasks` lists pools by id; in each the queued tasks in order, then the running.

    >>> import harn
    >>> async def main() -> int:
    ...     await harn.pool_create(name="review")
    ...     return len(unsettled_state().pool_pending_tasks)
    >>> harn.run(main)
    0
    """
    return current_runtime().service(UnsettledSources).state()


def _pending(runtime: Runtime) -> list[PendingPoolTask]:
    now = runtime.clock.now_ms()
    pools = sorted(runtime.service(PoolRegistry), key=lambda pool: pool.id)
    return [_pending_task(task, now) for pool in pools for task in pool.pending()]


def _pending_task(task: PoolTask, now: int) -> PendingPoolTask:
    seen = task.snapshot()
    return PendingPoolTask(
        id=seen.id,
        task_id=seen.id,
        pool_id=seen.pool_id,
        pool_name=seen.pool,
        status=seen.status,
        priority=seen.priority,
        key=seen.key,
        idempotency_key=seen.idempotency_key,
        submitted_at=seen.submitted_at,
        submitted_at_ms=task._submitted.at,
        submitted_by=seen.submitted_by,
        started_at=seen.started_at,
        age_ms=max(0, now - task._submitted.at),
    )
