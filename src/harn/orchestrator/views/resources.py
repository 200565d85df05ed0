"""The documents of the read API: one function for each resource, for every kind of store.

A list has the name of its resource; a record is what its `as_dict` returns. Payloads, headers,
outcomes, errors and records of the log are masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from harn import topics
from harn.clock import iso
from harn.errors import did_you_mean
from harn.llm import llm_usage
from harn.orchestrator.views.circuits_view import circuits_view
from harn.orchestrator.views.job_attempts import attempts_of
from harn.orchestrator.views.job_explanation import explain
from harn.orchestrator.views.overview import (
    leases_view,
    limits_view,
    newest,
    pool_activity,
    supervised,
)
from harn.orchestrator.views.queue_views import queue_block
from harn.orchestrator.views.shared_pools_view import shared_pools_view
from harn.orchestrator.views.waiting_jobs import waiting_of
from harn.orchestrator.views.without_secrets import masked
from harn.pools import PoolRegistry, look_at_journals
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.log import list_topics
from harn.storage.queue import job_views
from harn.triggers import DeadLetters, NotFound, Triggers
from harn.workers import JobState, WorkerQueue, consumers, summarise, worker_queues

MOST_LIMITS = 500
LAST_EVENTS = 500
"""The newest dispatches that are read to find the last ones of each trigger."""


async def queues_list(runtime: Runtime) -> dict[str, Any]:
    """Return every queue with its counts."""
    return {"queues": [each.as_dict() for each in await worker_queues()]}


async def queue_document(runtime: Runtime, queue: WorkerQueue) -> dict[str, Any]:
    """Return one queue: its counts, its scheduler's state, its pauses and its consumers."""
    counts = await queue.counts()
    assert counts is not None, "a queue in the list of names has a row"
    pauses = {**counts.pauses.held} | ({None: counts.pauses.queue} if counts.pauses.queue else {})
    return {
        **summarise(counts).as_dict(),
        "scheduler": await queue_block(runtime, counts),
        "pauses": [
            {"tenant_id": tenant, "since": iso(each.at), "reason": each.reason}
            for tenant, each in pauses.items()
        ],
        "consumers": [each.as_dict() for each in await consumers(queue.name)],
    }


async def jobs_page(
    runtime: Runtime,
    queue: WorkerQueue,
    status: Any,
    tenant_id: str | None,
    after: int,
    limit: int,
) -> dict[str, Any]:
    """Return a page of jobs; each that waits says why, and when it will probably start."""
    jobs = await queue.jobs(status=status, tenant_id=tenant_id, after=after, limit=limit)
    counts = await queue.counts()
    waiting = {} if counts is None else await waiting_of(runtime, counts, jobs)
    shown = [{**_job(runtime, job), "waiting": waiting.get(job.id)} for job in jobs]
    return {"jobs": shown, "next": jobs[-1].id if len(jobs) == limit else None}


async def job_document(runtime: Runtime, queue: WorkerQueue, job: JobState) -> dict[str, Any]:
    """Return one job: everything that is known of it, its attempts, and why it waits."""
    counts = await queue.counts()
    assert counts is not None, "a queue with a job has a row"
    view = await runtime.service(Store).run(
        lambda: job_views.look_at_job(counts.queue_id, job.id), write=False
    )
    timeline = [] if view is None else await attempts_of(runtime, queue.name, view)
    return {
        **_job(runtime, job),
        "timeline": masked(runtime, timeline),
        "explain": None
        if view is None
        else masked(runtime, await explain(runtime, queue.name, job.id)),
    }


def _job(runtime: Runtime, job: JobState) -> dict[str, Any]:
    found = job.as_dict()
    hidden = ("payload", "headers", "outcome", "error", "traceback")
    return {**found, **masked(runtime, {name: found[name] for name in hidden})}


async def pools_list(runtime: Runtime) -> dict[str, Any]:
    """Return the pools of this process, those in journals, and those shared through the store."""
    shared = [{"kind": "shared", **each} for each in await shared_pools_view(runtime)]
    whole = {each["pool_id"] for each in shared}
    here = []
    for pool in runtime.service(PoolRegistry):
        if pool.id in whole:
            continue
        shown = pool.snapshot().as_dict()
        del shown["tasks"]  # a pool may keep many thousands
        here.append({"kind": "process", "pool": shown["name"], **shown})
    journals = await asyncio.to_thread(look_at_journals, runtime.state_dir / "pools")
    known = {each["name"] for each in here}
    kept = [{"kind": "journal", **each.as_dict()} for each in journals if each.pool not in known]
    receipts = pool_activity(await newest(runtime, topics.POOL_AUDIT))
    return {"pools": masked(runtime, [*here, *shared, *kept]), "receipts": receipts}


async def limits_list(runtime: Runtime) -> dict[str, Any]:
    """Return the rate limits with their windows, the busy ones first."""
    found = await limits_view(runtime, runtime.state_dir)
    found.sort(key=lambda each: (each.is_idle, each.key))
    return {"limits": [each.as_dict() for each in found[:MOST_LIMITS]], "count": len(found)}


async def triggers_list(runtime: Runtime) -> dict[str, Any]:
    """Return the triggers with their gates and last events.

    They are those of this process; without any, those that other processes noted in the log.
    """
    triggers = runtime.service(Triggers)
    listed = [each.as_dict() for each in triggers.listed()]
    gates = {each.id: each.flow.as_dict() for each in triggers.active()}
    here = bool(listed)
    if not here:
        listed = _noted(await newest(runtime, topics.TRIGGER_LIFECYCLE))
    last: dict[str, list[dict[str, Any]]] = {}
    for record in await newest(runtime, topics.TRIGGER_OUTBOX, LAST_EVENTS):
        event = {name: record.payload.get(name) for name in ("event_id", "status", "error")}
        last.setdefault(str(record.payload.get("trigger_id")), []).append(
            {**event, "at": iso(record.occurred_at_ms)}
        )
    return {
        "triggers": [
            {
                **each,
                "gates": gates.get(each["id"], {}),
                "last_events": masked(runtime, last.get(each["id"], [])[-5:][::-1]),
                "can_fire": here and each.get("state") == "active",
            }
            for each in listed
        ],
        "circuits": await circuits_view(runtime),
    }


def _noted(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the triggers that the log's newest records name and that were not removed."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if record.kind == "trigger_registered" and record.payload.get("id"):
            found[str(record.payload["id"])] = record.payload
        elif record.kind == "trigger_terminated":
            known = found.get(str(record.payload.get("id")))
            if known is not None and known.get("key") == record.payload.get("key"):
                del found[str(record.payload.get("id"))]
    return [found[id] for id in sorted(found)]


async def dead_letters_page(runtime: Runtime, after: int, limit: int) -> dict[str, Any]:
    """Return pending dead letters, oldest first, and how many there are."""
    found = await runtime.service(DeadLetters).listed(after, limit)
    more = found.last if len(found.entries) == limit else None
    return {
        "dead_letters": masked(runtime, found.entries),
        "pending_entries": found.depth,
        "next": more,
    }


async def usage_document(runtime: Runtime, since: str, by: str) -> dict[str, Any]:
    """Return what model calls have used, as `harn usage --json` prints it."""
    names: Any = [name.strip() for name in by.split(",") if name.strip()]
    groups = await llm_usage(since=since, by=names)
    total = await llm_usage(since=since, by=())
    return {
        "since": since,
        "by": names,
        "usage": [each.as_dict() for each in groups],
        "total": total[0].as_dict() if total else None,
    }


async def consumers_list(runtime: Runtime) -> dict[str, Any]:
    """Return the consumers of all processes; those that ended within a day are not alive.

    A process that has shared pools open is one; `pools` has the names of pools by their ids.
    """
    return {
        "consumers": [each.as_dict() for each in await consumers()],
        "pools": {each["pool_id"]: each["pool"] for each in await shared_pools_view(runtime)},
    }


async def supervisors_list(runtime: Runtime) -> dict[str, Any]:
    """Return the supervisors that run, with the last event of each child, and the leases."""
    lifecycle = await newest(runtime, topics.SUPERVISOR_LIFECYCLE)
    return {"supervisors": supervised(lifecycle), "leases": await leases_view(runtime)}


async def topics_list(runtime: Runtime) -> dict[str, Any]:
    """Return every topic of the log with its newest offset."""
    found = await runtime.service(Store).run(list_topics, write=False)
    return {"topics": [{"topic": name, "newest": found[name]} for name in sorted(found)]}


async def log_page(runtime: Runtime, topic: str, after: int | None, limit: int) -> dict[str, Any]:
    """Return records of *topic*: after an offset, or the newest ones."""
    log = runtime.event_log
    head = await log.head(topic)
    if after is None:
        after = max(0, head - limit)
    if not head:
        known = (await topics_list(runtime))["topics"]
        if topic not in {each["topic"] for each in known}:
            near = did_you_mean(topic, [each["topic"] for each in known])
            raise NotFound(f"there is no topic {topic!r} in this store{near}")
    found = await log.read(topic, after, limit)
    return {
        "topic": topic,
        "newest": head,
        "records": [masked(runtime, each.as_dict()) for each in found],
        "next": found[-1].id if found else after,
    }
