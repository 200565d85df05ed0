"""The tasks of a runtime's pools that have not ended, for `unsettled_state`."""

from __future__ import annotations

from collections.abc import Iterable

from harn.pools.pool import Pool
from harn.pools.task import PoolTask
from harn.unsettled_sources import PendingPoolTask


def pending_tasks(pools: Iterable[Pool], now: int) -> list[PendingPoolTask]:
    """Return the tasks of *pools* that have not ended at the time *now*, by the pools' ids."""
    by_id = sorted(pools, key=lambda pool: pool.id)
    return [_pending(task, now) for pool in by_id for task in pool._slots.pending()]


def _pending(task: PoolTask, now: int) -> PendingPoolTask:
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
