"""A job as an application sees it: its status, its payload and its outcome."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from harn.durable_work import shown_step
from harn.errors import JobCancelled, JobError, JobFailed
from harn.records import Record, fields_of
from harn.storage import decode
from harn.storage.queue import PRIORITIES, STATES, stored_jobs

Status = Literal["ready", "scheduled", "in_flight", "acked", "dead", "purged", "cancelled"]

_STATUS: dict[str, Status] = {
    "parked": "ready",
    "ready": "ready",
    "scheduled": "scheduled",
    "claimed": "in_flight",
    "failed": "in_flight",
    "acked": "acked",
    "dead": "dead",
    "purged": "purged",
    "cancelled": "cancelled",
}
"""What an application calls the states of the index."""


class JobStep(Record, msgspec.Struct, frozen=True):
    """A step of a job that was recorded; *number* counts the earlier uses of its name.

    A step inside another one has both names: `outer > inner`.

    >>> import harn
    >>> async def main() -> tuple[str, int]:
    ...     async def handle(job: harn.Job) -> str:
    ...         return await harn.step("fetch", lambda: "page")
    ...
    ...     receipt = await harn.worker_queue("pages").enqueue(1)
    ...     await harn.drain("pages", handle)
    ...     [step] = (await receipt.state()).steps
    ...     return step.name, step.number
    >>> harn.run(main)
    ('fetch', 0)
    """

    name: str
    number: int
    started_at_ms: int
    duration_ms: int


class JobState(Record, msgspec.Struct, frozen=True):
    """Everything that is known of one job.

    *error* and *traceback* are those of the last failed attempt; of a cancelled job, *error* is the
    reason. *outcome* is what the handler returned; if that was not JSON, it is text and
    *outcome_omitted* is set. *steps* are those that its attempts have recorded, oldest first.

    >>> import harn
    >>> async def main() -> tuple[str, object]:
    ...     receipt = await harn.worker_queue("triage").enqueue({"pr": 1984})
    ...     job = await receipt.state()
    ...     return job.status, job.payload
    >>> harn.run(main)
    ('ready', {'pr': 1984})
    """

    id: int
    queue: str
    status: Status
    payload: Any
    function: str | None
    priority: str
    tenant_id: str | None
    trigger_id: str | None
    binding_key: str | None
    headers: dict[str, Any]
    dedupe_key: str | None
    cost: float
    enqueued_at_ms: int
    not_before_ms: int | None
    attempts: int
    max_attempts: int
    consumer_id: str | None
    claim_expires_at_ms: int | None
    settled_at_ms: int | None
    outcome: Any
    outcome_omitted: bool
    error: str | None
    traceback: str | None
    steps: tuple[JobStep, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether nothing more happens to the job by itself."""
        return self.status in ("acked", "dead", "purged", "cancelled")

    def as_dict(self) -> dict[str, Any]:
        """Return every field by name, JSON-ready as far as the payload is."""
        return {**fields_of(self), "steps": [each.as_dict() for each in self.steps]}


def job_state(queue: str, job: stored_jobs.StoredJob) -> JobState:
    """Return *job* as an application sees it."""
    record = _read(job.record)
    answer = _read(job.answer)
    status = _status(job)
    error, traceback = _failure(job, answer)
    return JobState(
        id=job.id,
        queue=queue,
        status=status,
        payload=record.get("event"),
        function=job.function,
        priority=PRIORITIES[job.priority],
        tenant_id=job.tenant_id,
        trigger_id=job.trigger_id,
        binding_key=job.binding_key,
        headers=record.get("headers") or {},
        dedupe_key=record.get("dedupe_key"),
        cost=record.get("cost") or 1,
        enqueued_at_ms=job.enqueued_at,
        not_before_ms=job.wake_at if status == "scheduled" else record.get("not_before_ms"),
        attempts=job.attempts,
        max_attempts=job.max_attempts,
        consumer_id=job.consumer if status != "ready" else None,
        claim_expires_at_ms=job.wake_at if status == "in_flight" else None,
        settled_at_ms=job.settled_at,
        outcome=answer.get("outcome") if status == "acked" else None,
        outcome_omitted=status == "acked" and bool(answer.get("outcome_omitted")),
        error=error,
        traceback=traceback,
        steps=_steps(job.steps),
    )


def _steps(kept: str | None) -> tuple[JobStep, ...]:
    if kept is None:
        return ()
    return tuple(JobStep(shown_step(name), *about) for name, *about in decode(kept))


def _status(job: stored_jobs.StoredJob) -> Status:
    """Return the status at this moment: an expiry or a due time may not be written yet."""
    is_due = job.wake_at is not None and job.now is not None and job.wake_at <= job.now
    status = _STATUS[STATES[job.state]]
    return "ready" if is_due and status in ("scheduled", "in_flight") else status


def _failure(job: stored_jobs.StoredJob, answer: dict[str, Any]) -> tuple[str | None, str | None]:
    state = STATES[job.state]
    if state in ("acked", "purged") or (not job.attempts and state != "cancelled"):
        return None, None
    attempts = decode(job.history.encode()) if job.history else []
    if state == "cancelled" or not answer:
        return (attempts[-1].get("error") if attempts else None), None
    return answer.get("error"), answer.get("traceback")


def _read(payload: bytes | None) -> dict[str, Any]:
    found = decode(payload) if payload else None
    return found if isinstance(found, dict) else {}


def outcome_of(job: JobState) -> Any:
    """Return the outcome of the settled *job*, or raise the error that it ended with."""
    name = f"job {job.id} of queue {job.queue!r}"
    if job.status == "acked":
        return job.outcome
    if job.status == "dead":
        after = f"after {job.attempts} attempt{'s' if job.attempts != 1 else ''}"
        raise JobFailed(f"{name} failed {after}: {job.error}", job)
    if job.status == "cancelled":
        reason = f": {job.error}" if job.error else ""
        raise JobCancelled(f"{name} was cancelled{reason}", job)
    if job.status == "purged":
        raise JobCancelled(f"{name} was purged", job)
    raise JobError(f"{name} is not settled, it is {job.status}")


def unknown(queue: str, key: int | str) -> JobError:
    """Return the error for a job that is not in the store, by its id or ticket."""
    if isinstance(key, str):
        return JobError(
            f"queue {queue!r} has no job of {key}: its transaction is not committed or was rolled "
            "back, or the job was settled and its record trimmed (HARN_KEEP_SETTLED)"
        )
    return JobError(
        f"queue {queue!r} has no job {key}: it was never enqueued here, or it was settled and its "
        "record trimmed (HARN_KEEP_SETTLED)"
    )
