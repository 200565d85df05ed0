"""The verbs of a queue and its jobs: cancel, retry, pause, resume.

These verbs need only the store. A queue or job that does not exist raises `NotFound`. A verb that
would change nothing raises `HarnError` with the current state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harn.errors import HarnError, InvalidOption, did_you_mean
from harn.option_checks import read_whole
from harn.orchestrator.verb_options import CancelJob, PauseQueue, ResumeQueue, RetryJob, Tell
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.queue import queue_names
from harn.triggers import NotFound
from harn.workers import JobState, WorkerQueue

if TYPE_CHECKING:
    from harn.orchestrator.service import Service

LONGEST_NUMBER = 19
"""Digits of the largest job id."""


async def cancel_job(service: Service, options: CancelJob, tell: Tell) -> dict[str, Any]:
    """Cancel a job, whatever its status. Cancelling this may leave the job cancelled."""
    queue = await known_queue(service.runtime, options.queue)
    job = await known_job(queue, options.job)
    if not await queue.cancel(job.id, options.reason):
        raise await _does_not_apply(queue, job, "only a job that is not settled can be cancelled")
    return await _now(queue, job)


async def retry_job(service: Service, options: RetryJob, tell: Tell) -> dict[str, Any]:
    """Make a dead job ready again. Cancelling this may leave the job ready."""
    queue = await known_queue(service.runtime, options.queue)
    job = await known_job(queue, options.job)
    if not await queue.retry(job.id):
        raise await _does_not_apply(queue, job, "only a dead job can be retried")
    return await _now(queue, job)


async def pause_queue(service: Service, options: PauseQueue, tell: Tell) -> dict[str, Any]:
    """Pause a queue or a tenant of it. Cancelling this may leave it paused."""
    queue = await known_queue(service.runtime, options.queue)
    if not await queue.pause(tenant_id=options.tenant, reason=options.reason):
        raise HarnError(f"{_what(options)} is paused already")
    return await _summed_up(queue, options)


async def resume_queue(service: Service, options: ResumeQueue, tell: Tell) -> dict[str, Any]:
    """Resume a queue or a tenant of it. Cancelling this may leave it resumed."""
    queue = await known_queue(service.runtime, options.queue)
    if not await queue.resume(tenant_id=options.tenant):
        raise HarnError(f"{_what(options)} is not paused")
    return await _summed_up(queue, options)


async def known_queue(runtime: Runtime, name: str) -> WorkerQueue:
    """Return the queue *name* of the store; `NotFound` if no job was ever put into it."""
    queue = WorkerQueue(runtime, name, None)
    known = await runtime.service(Store).run(queue_names, write=False)
    if name not in known:
        raise NotFound(f"there is no queue {name!r} in this store{did_you_mean(name, known)}")
    return queue


async def known_job(queue: WorkerQueue, id: int | str) -> JobState:
    """Return a job of *queue*, by its id or ticket as typed; `NotFound` if there is none."""
    if isinstance(id, str) and (number := read_whole(id, LONGEST_NUMBER)) is not None:
        id = number
    try:
        job = await queue.job(id)
    except InvalidOption:  # text that is neither an id nor a ticket
        job = None
    if job is None:
        raise NotFound(
            f"queue {queue.name!r} has no job {id}: it was never enqueued there, or it was "
            "settled and its record trimmed"
        )
    return job


async def _does_not_apply(queue: WorkerQueue, job: JobState, rule: str) -> HarnError:
    status = (await queue.job(job.id) or job).status.replace("_", " ")
    return HarnError(f"job {job.id} of queue {queue.name!r} is {status}: {rule}")


async def _now(queue: WorkerQueue, job: JobState) -> dict[str, Any]:
    return {"queue": queue.name, "job": (await queue.job(job.id) or job).as_dict()}


async def _summed_up(queue: WorkerQueue, options: ResumeQueue) -> dict[str, Any]:
    summary = (await queue.summary()).as_dict()
    return {"queue": queue.name, "tenant_id": options.tenant, "summary": summary}


def _what(options: ResumeQueue) -> str:
    whole = f"queue {options.queue!r}"
    return whole if options.tenant is None else f"tenant {options.tenant!r} of {whole}"
