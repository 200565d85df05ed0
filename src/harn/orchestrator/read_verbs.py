"""The verbs that only look: queues, jobs, pools, limits, triggers, dead letters, usage, the log.

They need only the store, and change nothing. Their options come from the query of a GET request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harn.checks import whole_number
from harn.duration import to_ms
from harn.errors import InvalidOption
from harn.orchestrator.queue_verbs import known_job, known_queue
from harn.orchestrator.verb_options import (
    ListJobs,
    ListLetters,
    OneJob,
    OneQueue,
    Options,
    ReadLog,
    Tell,
    Usage,
)
from harn.orchestrator.views import resources

if TYPE_CHECKING:
    from harn.orchestrator.service import Service

MOST_AT_ONCE = 1000


async def list_queues(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the queues."""
    return await resources.queues_list(service.runtime)


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


async def list_pools(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the pools."""
    return await resources.pools_list(service.runtime)


async def list_limits(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the rate limits."""
    return await resources.limits_list(service.runtime)


async def list_triggers(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the triggers."""
    return await resources.triggers_list(service.runtime)


async def list_letters(service: Service, options: ListLetters, tell: Tell) -> dict[str, Any]:
    """List the pending dead letters."""
    whole_number("after", options.after, least=0)
    whole_number("limit", options.limit, least=1, most=MOST_AT_ONCE)
    return await resources.dead_letters_page(service.runtime, options.after, options.limit)


async def usage(service: Service, options: Usage, tell: Tell) -> dict[str, Any]:
    """Add up what model calls have used."""
    to_ms(options.since, "since")
    return await resources.usage_document(service.runtime, options.since, options.by)


async def list_consumers(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the consumers."""
    return await resources.consumers_list(service.runtime)


async def list_supervisors(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the supervisors."""
    return await resources.supervisors_list(service.runtime)


async def list_topics(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """List the topics of the log."""
    return await resources.topics_list(service.runtime)


async def read_log(service: Service, options: ReadLog, tell: Tell) -> dict[str, Any]:
    """Read records of a topic."""
    if options.after is not None:
        whole_number("after", options.after, least=0)
    whole_number("limit", options.limit, least=1, most=MOST_AT_ONCE)
    if not options.topic.isprintable():
        raise InvalidOption("topic", options.topic, "the name of a topic")
    return await resources.log_page(service.runtime, options.topic, options.after, options.limit)
