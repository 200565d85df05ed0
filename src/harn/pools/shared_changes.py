"""What the store reports of a shared pool's tasks: they are adopted, started, ended or undone.

It is read where other processes have written, and is in the answers to this process's operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.pools.audit import note_drop
from harn.pools.idempotency_keys import binding
from harn.pools.shared_ends import SETTLED, drop_of, stored_end
from harn.pools.shared_records import read_record, task_of
from harn.storage.queue import shared_pools

if TYPE_CHECKING:
    from harn.pools.shared_pool_slots import SharedPoolSlots
    from harn.pools.shared_records import StoredTask
    from harn.pools.task import PoolTask


class TaskChanges:
    """Brings the tasks of one pool up to date with the store."""

    __slots__ = ("_slots",)

    def __init__(self, slots: SharedPoolSlots) -> None:
        self._slots = slots

    def apply(self, job: shared_pools.StoredJob) -> None:
        """Bring the mirror of one task up to date."""
        assert job.record is not None
        slots = self._slots
        task = slots.mirror.by_id.get(job.id)
        if task is None:
            task = self.adopt(job.id, read_record(job.record, job.id))
        if task._finished_ms is not None:
            return
        if job.state in SETTLED:
            if task in slots.here:
                slots.recovery.lose(task)
            self._apply_end(task, job)
        elif task in slots.here:
            return  # what this process knows of it is newer
        elif job.state == shared_pools.READY:
            task._queue_again()
            slots.note(job.id, "queued")
        elif job.state == shared_pools.CLAIMED:
            at = job.now if job.wake_at is None else job.wake_at - shared_pools.FOREVER_MS
            if at is not None:
                task._start(at)
            slots.note(job.id, "running")
        elif job.state == shared_pools.PARKED and slots.mirror.states.get(job.id) != "running":
            slots.note(job.id, "blocked")

    def _apply_end(self, task: PoolTask, job: shared_pools.StoredJob) -> None:
        end = stored_end(job, self._slots.options.backpressure)
        if end.started_ms is not None:
            task._start(end.started_ms)
        if end.reason is not None:
            task._explain(*end.reason)
        if end.status == "rejected":
            self._slots.keys.unbind(task)
        self._slots.ended_there(task, end.status, end.result)
        if task._finished_ms is not None and job.settled_at is not None:
            task._correct_end(job.settled_at)

    def forget(self, id: int) -> None:
        """Forget a task whose submit was undone."""
        task = self._slots.mirror.by_id.pop(id, None)
        self._slots.note(id, None)
        if task is not None:
            self._slots.keys.unbind(task)
            self._slots.own.discard(task)
            if task in self._slots.sending:  # its submit, which waits here, sends it again
                task._own_extras().ticket = 0
            elif task._finished_ms is None:
                task._undo()

    def vanished(self, id: int) -> None:
        """End the task *id*, which the store has not: it ended, and its record was trimmed."""
        task = self._slots.mirror.by_id.get(id)
        if task is not None and task not in self._slots.sending:
            self._slots.ended_there(
                task, "failed", "it ended while this process was away; how was trimmed"
            )

    def adopt(self, id: int, record: StoredTask) -> PoolTask:
        """Return the handle of a task that is read from the store."""
        task = self._slots.unplaced.get(record.task_id)
        if task is not None:
            self._slots.place_own(task, id, "queued")
            return task
        if record.task_id in self._slots.unwanted:
            self._slots.unwanted.discard(record.task_id)
            self._slots.cancels.undo(id)
        task = task_of(self._slots, record, self._slots.options.field)
        if record.function is not None:
            task._own_extras().function = record.function
        if record.idempotency_key is not None:
            self._slots.keys.bind(binding(record.tenant_id, record.idempotency_key), task)
        self._slots.place(task, id, "queued")
        return task

    def rejected(self, id: int, by: int | None, depth: int) -> None:
        """End a queued task that was dropped for another submit."""
        victim = self._slots.mirror.by_id.get(id)
        if victim is None or victim._finished_ms is not None:
            return
        decision = drop_of(self._slots.options.backpressure)
        victim._explain(decision.reason, decision.policy)
        self._slots.keys.unbind(victim)
        self._slots.ended_there(victim, "rejected", None)
        replacement = None if by is None else self._slots.mirror.by_id.get(by)
        log, most = self._slots.runtime.event_log, self._slots.options.backpressure.max_depth
        note_drop(log, victim, replacement, decision, depth, most)

    def reject(self, task: PoolTask, depth: int) -> None:
        """End *task*, which was rejected when it was submitted."""
        self.rejected(task._extras.ticket, None, depth)
