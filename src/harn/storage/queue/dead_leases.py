"""Ending what a process with an expired lease has left: its claims, and its part of a pool."""

from __future__ import annotations

from collections.abc import Sequence

from harn.storage.operations import Operation, Row, ask
from harn.storage.queue.expire import end_claims
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_index import BATCH
from harn.storage.queue.job_records import READY
from harn.storage.queue.pool_admission import admit_blocked
from harn.storage.queue.pool_cancels import asked_to_cancel
from harn.storage.queue.pool_index import forget_task
from harn.storage.queue.pool_records import UNRUN, Totals, read_pool
from harn.storage.queue.queue_row import QueueState, open_queue
from harn.storage.queue.settle import NewId, Settling, jobs_of
from harn.storage.queue.write_back import write_back

ASKED_BY = "user"
"""The canceller of a task whose process died; the record of the request says more."""


def end_claims_of(queue: str, lease: str, new_id: NewId) -> Operation[int]:
    """End a batch of what is held under an expired *lease*; return how many jobs.

    Claims are ended. In a pool the closures of its process fail, and its submits that wait for a
    place are undone; the places that become free go to the submits of other processes.
    """
    state = yield from open_queue(queue)
    if state is None:
        return 0
    count = yield from leave_lease(state, lease, new_id)
    if count:
        yield from write_back(state)
    return count


def leave_lease(state: QueueState, lease: str, new_id: NewId) -> Operation[int]:
    """End a batch of what is held under *lease*, inside an operation; return how many jobs."""
    rows = yield ask("claims_of_lease", queue_id=state.queue_id, lease=lease, limit=BATCH)
    count = len(rows)
    if rows and state.pool is not None:
        rows = yield from _cancel_asked(state, rows, new_id)
    if rows:
        yield from end_claims(state, rows, new_id)
    if state.pool is not None:
        count += yield from _leave_pool(state, lease, new_id)
    return count


def _cancel_asked(state: QueueState, rows: Sequence[Row], new_id: NewId) -> Operation[list[Row]]:
    """Cancel the tasks that would run again although a cancel was asked for; return other *rows*.

    A task that cannot run again ends as one whose process died.
    """
    again = [row[0] for row in rows if not 0 < row[4] <= row[3]]
    asked = yield from asked_to_cancel(state, again)
    jobs = yield from jobs_of(state, asked)
    settling = Settling(state, new_id)
    for id in sorted(asked):
        settling.cancel(jobs[id], ASKED_BY, "its process died")
    yield from settling.write()
    return [row for row in rows if row[0] not in asked]


def _leave_pool(state: QueueState, lease: str, new_id: NewId) -> Operation[int]:
    rows = yield ask("pool_closures_of", queue_id=state.queue_id, lease=lease, limit=BATCH)
    jobs = yield from jobs_of(state, {int(id) for (id,) in rows})
    for (id,) in rows:
        job = jobs[id]
        if job.state == READY:
            settling = Settling(state, new_id)
            text = f"its process died: {UNRUN}"
            yield from settling.bury(job, "", text, status=UNRUN)
            yield from settling.write()
        else:
            note(state, "job_withdrawn", {"job_event_id": id})
            yield from forget_task(state, job)
    if len(rows) == BATCH:  # there may be more of a submit that is half undone
        return len(rows)
    assert state.pool is not None
    [row] = yield ask("pool_totals", queue_id=state.queue_id)
    admitted = yield from admit_blocked(state, read_pool(state.pool), Totals(*map(int, row)))
    return len(rows) + len(admitted)
