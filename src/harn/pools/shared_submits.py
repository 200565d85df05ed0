"""A submit to a shared pool on its way to the store, and the verdict on each of its tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harn.pools.shared_records import job_of
from harn.pools.shared_work import Submit
from harn.storage.queue import shared_pools

if TYPE_CHECKING:
    from harn.pools.shared_pool import SharedPool
    from harn.pools.task import PoolTask


class TaskSubmit(Submit):
    """The new *tasks* of one caller: all of them or none.

    With *at_once* no caller waits: what would be refused is rejected, and what was fenced is sent
    again.
    """

    __slots__ = ("_at_once", "_bound", "_pool", "_tenant")

    def __init__(
        self,
        pool: SharedPool,
        tasks: list[PoolTask],
        tenant: str | None,
        bound: Any,
        *,
        at_once: bool = False,
    ) -> None:
        super().__init__(tasks)
        self._pool = pool
        self._tenant = tenant
        self._bound = bound
        """What the idempotency key is bound under, if the caller gave one."""
        self._at_once = at_once

    def make(self, lease: str) -> shared_pools.PoolSubmit:
        """Make its jobs, when the operation begins: they name the *lease* that is held then."""
        slots, tasks, tenant = self._pool._slots, self.tasks, self._tenant
        headers, options = slots.job_headers, slots.options
        together = tasks[0].id if len(tasks) > 1 else None
        jobs = [job_of(task, headers, lease, options, tenant, together) for task in tasks]
        return shared_pools.PoolSubmit(tuple(jobs), self._at_once)

    def landed(self, verdicts: list[shared_pools.SubmitResult]) -> None:
        """Apply the verdicts, before other code sees the tasks."""
        if self._at_once and verdicts[0].verdict == "fenced":
            self._pool._slots.work.add(self)
            return
        for task, verdict in zip(self.tasks, verdicts, strict=True):
            self._landed(task, verdict)
        if self.is_given_up:
            self._pool._undo(self.tasks)

    def _landed(self, task: PoolTask, verdict: shared_pools.SubmitResult) -> None:
        slots, decided = self._pool._slots, verdict.verdict
        if decided in ("refuse", "fenced", "known"):
            slots.unplaced.pop(task.id, None)
            if decided == "known" and self._at_once:
                standing = self._pool._stand_for(task, verdict)
                slots.runtime.own(slots.runtime.loop.create_task(standing))
            return
        slots.place_own(task, verdict.id, "blocked" if decided == "park" else "queued")
        if self._bound is not None and task._finished_ms is None:
            slots.keys.bind(self._bound, task)
        if decided == "reject":
            slots.changes.reject(task, 0 if verdict.totals is None else verdict.totals.queued)
        elif task._stopping:
            slots.cancel(task)
