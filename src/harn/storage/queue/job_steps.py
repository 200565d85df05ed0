"""The steps of a job: a record among the queue's claims for each, and a row that finds it.

A step is a settlement like the others (`settle.py`), so its record and the look at the job's claim
are one transaction. The results stay in the log; the rows go with their job.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harn.durable_work import StepRecord
from harn.errors import StorageCorrupt
from harn.storage.contract import Draft, Event
from harn.storage.log import append
from harn.storage.operations import Operation, Row, ask, ask_many
from harn.storage.queue.gathered_records import queue_headers
from harn.storage.queue.job_records import Settlement
from harn.storage.queue.queue_row import QueueState
from harn.topics import queue_topics

KIND = "step_recorded"
FIELDS = ("job_event_id", "name", "number", "call", "started_at_ms", "duration_ms")
COLUMNS = (*("queue_id", "job_id", "entry", "name", "number", "call", "started_at", "duration_ms"),)


def add_steps(state: QueueState, items: Sequence[Settlement]) -> Operation[None]:
    """Record the steps of *items*, whose claims hold."""
    topic, headers = queue_topics(state.name).claims, queue_headers(state.name)
    records = [_payload(item) for item in items]
    drafts = [Draft(topic, KIND, msgspec.json.encode(each), headers, state.now) for each in records]
    placed = yield from append(drafts)
    rows = [_row(state, id, each) for (id, _), each in zip(placed, records, strict=True)]
    yield ask_many("insert_steps", COLUMNS, rows)


def fold_step(state: QueueState, event: Event) -> Operation[None]:
    """Enter the step of *event*, unless its job was trimmed."""
    job_id, *about = (event.payload[each] for each in FIELDS)
    if (yield ask("one_job", queue_id=state.queue_id, id=int(job_id))):
        yield ask_many("insert_steps", COLUMNS, [(state.queue_id, job_id, event.id, *about)])


def _row(state: QueueState, entry: int, step: _Payload) -> Row:
    about = (step.name, step.number, step.call, step.started_at_ms, step.duration_ms)
    return state.queue_id, step.job_event_id, entry, *about


def read_step(payload: bytes) -> StepRecord:
    """Read a step from its record; one that cannot be what was written is `StorageCorrupt`."""
    try:
        found = _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StorageCorrupt(str(error)) from error
    about = (found.name, found.number, found.call, bytes(found.result))
    return StepRecord(*about, found.started_at_ms, found.duration_ms)


class _Payload(msgspec.Struct):
    """A record of a step, as the log has it."""

    job_event_id: int
    claim_id: str
    consumer_id: str
    name: str
    number: int
    call: str
    started_at_ms: int
    duration_ms: int
    result: msgspec.Raw


def _payload(item: Settlement) -> _Payload:
    step = item.step
    assert step is not None
    return _Payload(
        item.job_id,
        item.claim_id,
        item.consumer,
        step.name,
        step.number,
        step.call,
        step.started_at_ms,
        step.duration_ms,
        msgspec.Raw(step.result),
    )


_decode = msgspec.json.Decoder(_Payload).decode
