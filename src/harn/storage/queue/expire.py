"""Changes that time alone brings: claims expire, and scheduled jobs come due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harn.storage.codec import decode
from harn.storage.operations import Operation, Row, ask
from harn.storage.queue.attempt_history import EXPIRED, add_history
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_changes import settle_jobs
from harn.storage.queue.job_index import BATCH, JobRow, Shifts
from harn.storage.queue.job_records import CLAIMED, FAILED
from harn.storage.queue.queue_row import QueueState, open_queue
from harn.storage.queue.settle import NewId, Settling
from harn.storage.queue.write_back import write_back


def end_due_in(queue: str, new_id: NewId) -> Operation[bool]:
    """End a batch of expired claims in *queue*, and make due jobs ready; tell if more is due."""
    state = yield from open_queue(queue)
    if state is None:
        return False
    yield from end_due(state, new_id)
    yield from write_back(state)
    return state.is_due


def end_due(state: QueueState, new_id: NewId) -> Operation[None]:
    """End a batch of expired claims, and make a batch of due jobs ready; *state* gathers it."""
    if not state.is_due:
        return
    rows = yield ask("due_jobs", queue_id=state.queue_id, until=state.now, limit=BATCH)
    yield from end_claims(state, rows, new_id)


def end_claims(
    state: QueueState, rows: Sequence[tuple[Any, ...]], new_id: NewId
) -> Operation[None]:
    """End claims, *rows* of `due_jobs`: a job without an attempt left is dead."""
    exhausted = [row for row in rows if row[2] in (CLAIMED, FAILED) and 0 < row[4] <= row[3]]
    woken = [row for row in rows if row not in exhausted] if exhausted else rows
    if woken:
        record = {"job_event_ids": [row[0] for row in woken], "woken_at_ms": state.now}
        note(state, "jobs_woken", record)
        yield from wake_jobs(state, woken)
    if exhausted:
        yield from _bury(state, exhausted, new_id)
    [(alarm,)] = yield ask("next_due", queue_id=state.queue_id)
    state.alarm = alarm
    state.is_changed = True


def _bury(state: QueueState, rows: Sequence[tuple[Any, ...]], new_id: NewId) -> Operation[None]:
    settling = Settling(state, new_id)
    for id, key, was, attempts, most, held, claim_id, consumer, wake_at, history, _ in rows:
        job = JobRow(id, key, was, wake_at, attempts, most, claim_id, held, history)
        error = EXPIRED
        if was == FAILED:
            error = (decode(history.encode()) if history else [{}])[-1].get("error") or EXPIRED
        yield from settling.bury(job, consumer or "", error, already_told=was == FAILED)
    yield from settling.write()


def wake_jobs(state: QueueState, rows: Sequence[Row]) -> Operation[None]:
    """Make jobs ready whose claim has expired or whose time has come: *rows* of `due_jobs`."""
    shifts = Shifts()
    settled: list[Row] = []
    for id, key, was, attempts, _, held, _, _, wake_at, history, tenant_id in rows:
        if was == CLAIMED:  # a dead consumer's claims end before their time
            at = min(wake_at, state.now)
            history = add_history(history, attempts, at, "expired", EXPIRED)
            state.tally.expired += 1
            state.is_changed = True
        to = state.ready_for(tenant_id)
        settled.append((id, to, None, held, attempts, None, history, None))
        shifts.move(key, was, to)
    if settled:
        yield from settle_jobs(state, settled)
    yield from shifts.apply(state)
