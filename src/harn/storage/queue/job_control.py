"""Operations of an operator or an application on a queue: cancel, purge, retry, pause, resume."""

from __future__ import annotations

from typing import Any

from harn.storage.codec import decode
from harn.storage.operations import Operation, ask
from harn.storage.queue.expire import end_due
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_index import JobRow
from harn.storage.queue.job_records import DEAD, SETTLED_STATES
from harn.storage.queue.parked_jobs import begin_pause, begin_resumption, carry_on
from harn.storage.queue.queue_row import QueueState, open_queue
from harn.storage.queue.settle import NewId, Settling, jobs_of
from harn.storage.queue.write_back import write_back

PURGE_BATCH = 2000
"""Jobs that one operation purges at most."""


def cancel_job(queue: str, id: int, by: str, reason: str | None, new_id: NewId) -> Operation[bool]:
    """Settle a job as cancelled; False if there is none, or it is settled already."""
    state, job = yield from _open(queue, id)
    if state is None or job is None or job.state in SETTLED_STATES:
        return False
    settling = Settling(state, new_id)
    settling.cancel(job, by, reason)
    yield from settling.write()
    yield from write_back(state)
    return True


def retry_job(queue: str, id: int, by: str, new_id: NewId) -> Operation[tuple[bool, str | None]]:
    """Make a dead job ready again; return whether it was dead, and the id of its dead letter."""
    state, job = yield from _open(queue, id)
    if state is None or job is None or job.state != DEAD:
        return False, None
    attempts = decode(job.history.encode()) if job.history else [{}]
    settling = Settling(state, new_id)
    yield from settling.retry(job, by)
    yield from settling.write()
    yield from write_back(state)
    return True, attempts[-1].get("dlq_entry_id")


def purge_jobs(
    queue: str, after: int, until: int | None, by: str, reason: str | None, new_id: NewId
) -> Operation[tuple[int, int | None, int | None]]:
    """Purge ready and scheduled jobs after an id, some at a time.

    Return how many were purged, the id to continue after (None at the end), and *until*: jobs with
    a later id are not purged.
    """
    state = yield from open_queue(queue)
    if state is None:
        return 0, None, None
    yield from end_due(state, new_id)
    yield from write_back(state)
    if until is None:
        [(newest,)] = yield ask("newest_job", queue_id=state.queue_id)
        until = int(newest or 0)
    rows = yield ask(
        "jobs_to_purge", queue_id=state.queue_id, after=after, until=until, limit=PURGE_BATCH
    )
    if not rows:
        return 0, None, until
    ids = [int(id) for (id,) in rows]
    settling = Settling(state, new_id)
    for job in (yield from jobs_of(state, set(ids))).values():
        settling.purge(job, by, reason)
    yield from settling.write()
    yield from write_back(state)
    return len(ids), ids[-1], until


def pause_queue(queue: str, tenant_id: str | None, by: str, reason: str | None) -> Operation[bool]:
    """Pause a queue or one of its tenants; False if it was paused already.

    Call `carry_on_queue` until a tenant's ready jobs are parked.
    """
    state = yield from open_queue(queue, create=True)
    assert state is not None
    if _is_paused(state, tenant_id):
        return False
    record: dict[str, Any] = {
        "tenant_id": tenant_id,
        "paused_by": by,
        "paused_at_ms": state.now,
        "reason": reason,
    }
    note(state, "queue_paused", record)
    yield from begin_pause(state, record)
    yield from write_back(state)
    return True


def resume_queue(queue: str, tenant_id: str | None, by: str) -> Operation[bool]:
    """Resume a queue or one of its tenants; False if it was not paused.

    Call `carry_on_queue` until a tenant's parked jobs are ready.
    """
    state = yield from open_queue(queue)
    if state is None or not _is_paused(state, tenant_id):
        return False
    record = {"tenant_id": tenant_id, "resumed_by": by, "resumed_at_ms": state.now}
    note(state, "queue_resumed", record)
    yield from begin_resumption(state, record)
    yield from write_back(state)
    return True


def carry_on_queue(queue: str) -> Operation[bool]:
    """Park or unpark one more batch of a tenant's jobs; tell whether any are left."""
    state = yield from open_queue(queue)
    if state is None:
        return False
    more = yield from carry_on(state)
    yield from write_back(state)
    return more


def _is_paused(state: QueueState, tenant_id: str | None) -> bool:
    pauses = state.pauses
    return (pauses.queue is not None) if tenant_id is None else tenant_id in pauses.held


def _open(queue: str, id: int) -> Operation[tuple[QueueState | None, JobRow | None]]:
    state = yield from open_queue(queue)
    if state is None:
        return None, None
    return state, (yield from jobs_of(state, {id})).get(id)
