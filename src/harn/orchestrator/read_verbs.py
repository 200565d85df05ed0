"""The verbs that only look: queues, jobs, pools, limits, triggers, dead letters, usage, the log.

They need only the store, and change nothing: cancelling one leaves nothing behind. Their options
come from the query of a GET request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from harn.errors import InvalidOption
from harn.option_checks import whole_number
from harn.orchestrator.queue_verbs import known_job, known_queue
from harn.orchestrator.verb_options import (
    ListJobs,
    ListLetters,
    OneJob,
    OneQueue,
    Options,
    ReadLog,
    ReadUsage,
    Tell,
)
from harn.orchestrator.views import resources

if TYPE_CHECKING:
    from harn.orchestrator.service import Service
    from harn.runtime import Runtime

MOST_AT_ONCE = 1000

ReadVerb = Callable[["Service", Options, Tell], Awaitable[dict[str, Any]]]
"""Carries out a verb that only looks."""


def _listing(read: Callable[[Runtime], Awaitable[dict[str, Any]]]) -> ReadVerb:
    """Return the verb that lists what *read* finds, which takes no options."""

    async def look(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
        return await read(service.runtime)

    return look


list_queues: ReadVerb = _listing(resources.queues_list)
list_pools: ReadVerb = _listing(resources.pools_list)
list_limits: ReadVerb = _listing(resources.limits_list)
list_triggers: ReadVerb = _listing(resources.triggers_list)
list_consumers: ReadVerb = _listing(resources.consumers_list)
list_supervisors: ReadVerb = _listing(resources.supervisors_list)
list_topics: ReadVerb = _listing(resources.topics_list)


async def one_queue(service: Service, options: OneQueue, tell: Tell) -> dict[str, Any]:
    """Look at a queue."""
    queue = await known_queue(service.runtime, options.queue)
    return await resources.queue_document(service.runtime, queue)


async def list_jobs(service: Service, options: ListJobs, tell: Tell) -> dict[str, Any]:
    """List jobs of a queue."""
    whole_number("limit", options.limit, least=1, most=MOST_AT_ONCE)
    queue = await known_queue(service.runtime, options.queue)
    return await resources.jobs_page(
        service.runtime, queue, options.status, options.tenant_id, options.after, options.limit
    )


async def one_job(service: Service, options: OneJob, tell: Tell) -> dict[str, Any]:
    """Look at a job."""
    queue = await known_queue(service.runtime, options.queue)
    job = await known_job(queue, options.job)
    return await resources.job_document(service.runtime, queue, job)


async def list_letters(service: Service, options: ListLetters, tell: Tell) -> dict[str, Any]:
    """List the pending dead letters."""
    whole_number("after", options.after, least=0)
    whole_number("limit", options.limit, least=1, most=MOST_AT_ONCE)
    return await resources.dead_letters_page(service.runtime, options.after, options.limit)


async def usage(service: Service, options: ReadUsage, tell: Tell) -> dict[str, Any]:
    """Add up what model calls have used."""
    return await resources.usage_document(service.runtime, options.since, options.by)


async def read_log(service: Service, options: ReadLog, tell: Tell) -> dict[str, Any]:
    """Read records of a topic."""
    if options.after is not None:
        whole_number("after", options.after, least=0)
    whole_number("limit", options.limit, least=1, most=MOST_AT_ONCE)
    if not options.topic.isprintable():
        raise InvalidOption("topic", options.topic, "the name of a topic")
    return await resources.log_page(service.runtime, options.topic, options.after, options.limit)
