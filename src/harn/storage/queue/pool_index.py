"""How a shared pool changes the queue's tables: its settings, and submits that are undone."""

from __future__ import annotations

from harn.storage.operations import Operation, ask
from harn.storage.queue.job_index import JobRow, Shifts
from harn.storage.queue.job_records import PURGED
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.share_keys import change_keys


def adopt_settings(state: QueueState, settings: str) -> Operation[None]:
    """Let the queue belong to the pool with these *settings*; its tasks choose their own shares."""
    yield from change_keys(state, "binding")
    yield ask("set_pool", queue_id=state.queue_id, settings=settings)
    state.pool = settings
    state.is_touched = True


def forget_task(state: QueueState, job: JobRow) -> Operation[None]:
    """Remove *job*, whose submit was undone, as if it had never been entered."""
    shifts = Shifts()
    shifts.move(job.key, job.state, PURGED)
    yield from shifts.apply(state)
    yield ask("unbind_job", queue_id=state.queue_id, id=job.id)
    yield ask("forget_job", queue_id=state.queue_id, id=job.id)
    state.is_touched = True
