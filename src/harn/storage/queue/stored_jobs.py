"""Reading jobs for an application: one by its id, or a page of them. Reading only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from harn.durable_work import StepRecord
from harn.errors import StorageCorrupt
from harn.storage.log import record_at
from harn.storage.operations import Operation, ask, ask_ahead, ask_together
from harn.storage.queue.job_records import (
    ACKED,
    CANCELLED,
    DEAD,
    PARKED,
    PRIORITIES,
    PURGED,
    SCHEDULED,
)
from harn.storage.queue.job_steps import read_step
from harn.storage.queue.job_views import jobs_ahead
from harn.storage.queue.parked_jobs import ready_page
from harn.storage.queue.read_queue import read_with_outbox
from harn.topics import QueueTopics, queue_topics

logger: logging.Logger = logging.getLogger("harn.storage")

STATUSES = ("ready", "scheduled", "in_flight", "acked", "dead", "purged", "cancelled")
_STATE_OF: dict[str, int] = {
    "scheduled": SCHEDULED,
    "acked": ACKED,
    "dead": DEAD,
    "purged": PURGED,
    "cancelled": CANCELLED,
}
MOST_LINES = 30
"""The most keys for which `places_of` counts the jobs ahead."""


class StoredJob(msgspec.Struct, frozen=True):
    """A job's row with its record and its last response, encoded as they are."""

    id: int
    key: str
    priority: int
    state: int
    enqueued_at: int
    wake_at: int | None
    attempts: int
    max_attempts: int
    consumer: str | None
    settled_at: int | None
    tenant_id: str | None
    binding_key: str | None
    trigger_id: str | None
    function: str | None
    history: str | None
    response: int | None
    now: int | None
    """The store's time; None if it was not read, since the job waits for no time."""
    steps: str | None
    """Its steps as a JSON array of [name, number, started at, duration]; None if there are none."""
    record: bytes | None
    answer: bytes | None


def read_jobs(queue: str, ids: Sequence[int]) -> Operation[list[StoredJob]]:
    """Read some jobs of *queue*, by id; those that are not there are left out."""
    topics = queue_topics(queue)
    about = {"queue": queue, "jobs": topics.jobs, "responses": topics.responses}
    if len(ids) == 1:
        rows = yield ask("job_of", id=ids[0], **about)
    else:
        rows = yield ask("jobs_of", ids=msgspec.json.encode(sorted(ids)).decode(), **about)
    found = []
    for row in rows:
        job = StoredJob(*row)
        is_whole = job.record is not None and (job.answer is not None or job.response is None)
        if not is_whole or (job.wake_at is not None and job.now is None):
            job = yield from _completed(job, topics)
        found.append(job)
    return found


def _completed(job: StoredJob, topics: QueueTopics) -> Operation[StoredJob]:
    """Read what the row of *job* came without: its records, which an engine may keep elsewhere."""
    now, record, answer = job.now, job.record, job.answer
    if now is None and job.wake_at is not None:
        now = (yield ask("now"))[0][0]
    if record is None:
        record = yield from record_at(topics.jobs, job.id)
    if answer is None and job.response is not None:
        answer = yield from record_at(topics.responses, job.response)
    return msgspec.structs.replace(job, now=now, record=record, answer=answer)


def read_steps(queue: str, job_id: int) -> Operation[list[StepRecord]]:
    """Read the steps of a job with their results, in the order they were recorded.

    One whose record is damaged is left out: it runs again.
    """
    topic = queue_topics(queue).claims
    found: list[StepRecord] = []
    for entry, payload in (yield ask("steps_of_job", queue=queue, topic=topic, job_id=job_id)):
        if payload is None:  # an engine that keeps its records elsewhere
            payload = yield from record_at(topic, entry)
        try:
            found.append(read_step(bytes(payload)))
        except StorageCorrupt as error:
            logger.warning("record %d of %s, a step, cannot be read: %s", entry, topic, error)
    return found


class TicketState(msgspec.Struct, frozen=True):
    """What is known of a ticket: its job's id, or whether the job waits in the outbox."""

    job_id: int | None
    is_waiting: bool


def find_ticket(queue: str, ticket: str) -> Operation[TicketState]:
    """Look for the job of *ticket*, reading only."""
    found: Any = yield ask_together(
        [
            ask("find_ticket", queue=queue, ticket=ticket),
            ask_ahead("ticket_waits", queue=queue, ticket=ticket),
        ]
    )
    rows, waiting = found
    return TicketState(int(rows[0][0]) if rows else None, bool(waiting))


class SettledJob(msgspec.Struct, frozen=True):
    """A job that is settled, or not there at all."""

    id: int
    response: bytes | None
    """The response of an acked job, encoded as it is, if it is short and kept beside the index."""


class SettledJobs(msgspec.Struct, frozen=True):
    """Jobs that are settled, or not there at all."""

    jobs: list[SettledJob]
    noted: int
    """The newest offset of the queue's claims that this takes into account."""
    changed_nothing: bool = True


def settled_among(queue: str, ids: Sequence[int]) -> Operation[SettledJobs]:
    """Return those of *ids* that are settled, or not there at all."""
    topics = queue_topics(queue)
    wanted = msgspec.json.encode(ids).decode()
    found: Any = yield ask_together(
        [
            ask("topic_head", topic=topics.claims),  # first: what comes later is seen below
            ask("settled_among", queue=queue, responses=topics.responses, ids=wanted),
        ]
    )
    head, rows = found
    return SettledJobs(
        [SettledJob(id, None if response is None else bytes(response)) for id, response in rows],
        int(head[0][0]) if head else 0,
    )


class JobsPage(msgspec.Struct, frozen=True):
    """Some jobs of a queue; with *is_due* none, because expired claims must be ended first."""

    jobs: list[StoredJob]
    is_due: bool = False
    has_waiting: bool = False
    """Whether jobs of committed transactions wait in the outbox; they are not among these."""


def page_of_jobs(
    queue: str, status: str | None, tenant_id: str | None, after: int, limit: int
) -> Operation[JobsPage]:
    """Read jobs of *queue* after an id: of one status or tenant, or all jobs."""
    row, has_waiting = yield from read_with_outbox(queue)
    if row is None:
        return JobsPage([], has_waiting=has_waiting)
    if row.is_due:
        return JobsPage([], is_due=True, has_waiting=has_waiting)
    page = {"queue_id": row.queue_id, "after": after, "limit": limit}
    ids: list[int] = []
    if status is None and tenant_id is None:
        ids = [id for (id,) in (yield ask("page_of_all", **page))]
    else:
        for wanted in STATUSES if status is None else (status,):
            ids += yield from _ids_of(wanted, row.dimension, tenant_id, page)
    jobs = yield from read_jobs(queue, sorted(ids)[:limit])
    return JobsPage(jobs, has_waiting=has_waiting)


def _ids_of(
    status: str, dimension: str, tenant_id: str | None, page: dict[str, Any]
) -> Operation[list[int]]:
    if status == "in_flight":
        return [id for (id,) in (yield ask("page_in_flight", tenant_id=tenant_id, **page))]
    if status == "ready":
        found = yield from _kept(PARKED, tenant_id, page)
        after, limit = page["after"], page["limit"]
        for priority in range(len(PRIORITIES)):
            rows = yield from ready_page(
                page["queue_id"], dimension, priority, tenant_id, after, limit
            )
            found += [id for (id,) in rows]
        return found
    return (yield from _kept(_STATE_OF[status], tenant_id, page))


def _kept(state: int, tenant_id: str | None, page: dict[str, Any]) -> Operation[list[int]]:
    if tenant_id is None:
        rows = yield ask("page_of_state", state=state, **page)
    else:
        rows = yield ask("page_of_tenant", state=state, tenant_id=tenant_id, **page)
    return [id for (id,) in rows]


class JobPlace(msgspec.Struct, frozen=True):
    """The line of a ready job, and how many jobs are ahead of it there; None if not counted."""

    key: str
    ahead: int | None


def places_of(queue_id: int, ids: list[int], by_key: bool) -> Operation[dict[int, JobPlace]]:
    """Return the places of those of *ids* that are ready: in their key's line, or in the queue's.

    The jobs ahead of the first of *ids* in a line are counted in the store, up to a bound; for the
    others those among *ids* are added. So *ids* leaves out no ready job between two of one line.
    """
    encoded = msgspec.json.encode(sorted(ids)).decode()
    rows = yield ask("places_of", queue_id=queue_id, ids=encoded)
    lines: dict[str, list[int]] = {}
    found: dict[int, JobPlace] = {}
    for id, key, priority in rows:
        line = key if by_key else ""
        if line not in lines and len(lines) < MOST_LINES:
            lines[line] = yield from jobs_ahead(queue_id, key if by_key else None, id)
        counts = lines.get(line)
        found[id] = JobPlace(key, None if counts is None else sum(counts[: priority + 1]))
        if counts is not None:
            counts[priority] += 1
    return found
