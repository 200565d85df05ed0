"""Requests to cancel a running task of a shared pool. They outlive the process that runs it.

The running closure keeps its slot until it has really ended, so a request is a record that its
process reads. A row beside it is found when that process dies or queues the task again: the task is
then cancelled and does not run a second time. The rows go with their tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from harn.storage.contract import Event
from harn.storage.operations import Operation, Row, ask, ask_many
from harn.storage.queue.gathered_records import note
from harn.storage.queue.queue_row import QueueState

COLUMNS = ("queue_id", "job_id")


def ask_to_cancel(state: QueueState, id: int, by: str) -> Operation[None]:
    """Record that *by* wants the running task *id* to end; the first request counts."""
    if (yield from asked_to_cancel(state, [id])):
        return
    note(state, "job_cancel_asked", {"job_event_id": id, "asked_by": by})
    yield ask_many("insert_cancels", COLUMNS, [(state.queue_id, id)])


def asked_to_cancel(state: QueueState, ids: Collection[int]) -> Operation[set[int]]:
    """Return which of the tasks *ids* are to be cancelled."""
    if not ids:
        return set()
    wanted = msgspec.json.encode(sorted(ids)).decode()
    rows: Sequence[Row] = yield ask("asked_cancels", queue_id=state.queue_id, ids=wanted)
    return {int(id) for (id,) in rows}


def fold_cancel_asked(state: QueueState, event: Event) -> Operation[None]:
    """Enter the request of *event*, unless its task was trimmed."""
    id = int(event.payload["job_event_id"])
    if not (yield ask("one_job", queue_id=state.queue_id, id=id)):
        return
    if not (yield from asked_to_cancel(state, [id])):
        yield ask_many("insert_cancels", COLUMNS, [(state.queue_id, id)])
