"""Why the waiting jobs of a page wait, and when they will probably start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harn.clock import iso
from harn.duration import roughly
from harn.orchestrator.views.predicted_start import Pace, Waiting, predicted_start
from harn.orchestrator.views.queue_views import MOST_KEYS, claimers_policy, weight_of
from harn.orchestrator.views.recent_starts import recent_starts
from harn.plurals import counted
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.queue import QueueCounts, ShareCounts, list_shares, shown_key, stored_jobs
from harn.workers import JobState, SchedulerPolicy, consumers, consumers_for


@dataclass(slots=True)
class QueueFacts:
    """What a queue's waiting jobs wait for, as far as all of them share it."""

    counts: QueueCounts
    policy: dict[str, Any]
    shares: dict[str, ShareCounts]
    pace: Pace
    alive: int
    able: dict[str, int] = field(default_factory=dict)
    """Living consumers by the function that they know."""

    @property
    def by_key(self) -> bool:
        """Whether each key has a line of its own."""
        return bool(self.policy["strategy"]["kind"] != "fifo")

    def part(self, key: str) -> float:
        """Return the part of the starts that *key* is entitled to while others have work."""
        if not self.by_key:
            return 1.0
        own = weight_of(self.policy, key)
        busy = (each for each in self.shares.values() if each.ready or each.in_flight)
        others = sum(weight_of(self.policy, each.key) for each in busy if each.key != key)
        return own / (own + others)

    def is_capped(self, key: str) -> bool:
        """Tell whether *key* has as many claims in flight as it may."""
        cap = self.policy["max_concurrent_per_key"]
        share = self.shares.get(key)
        return bool(self.by_key and cap and share is not None and share.in_flight >= cap)


async def queue_facts(
    runtime: Runtime, counts: QueueCounts, functions: Sequence[str] = ()
) -> QueueFacts:
    """Read what the jobs of a queue wait for. Cancelling leaves nothing behind."""
    queue = counts.queue
    policy = claimers_policy(counts) or SchedulerPolicy.from_env().as_dict()
    shares = await runtime.service(Store).run(
        lambda: list_shares(counts.queue_id, MOST_KEYS), write=False
    )
    return QueueFacts(
        counts,
        policy,
        {each.key: each for each in shares},
        await recent_starts(runtime, queue),
        sum(each.alive for each in await consumers(queue)),
        {name: await consumers_for(queue, name) for name in functions},
    )


async def waiting_of(
    runtime: Runtime, counts: QueueCounts, jobs: Sequence[JobState]
) -> dict[int, dict[str, Any]]:
    """Say for each unsettled job of *jobs* why it waits and when it will probably start."""
    unsettled = [job for job in jobs if not job.is_settled]
    if not unsettled:
        return {}
    functions = sorted({job.function for job in unsettled if job.function is not None})
    facts = await queue_facts(runtime, counts, functions)
    ids = [job.id for job in unsettled]
    places = await runtime.service(Store).run(
        lambda: stored_jobs.places_of(counts.queue_id, ids, facts.by_key), write=False
    )
    return {job.id: _shown(facts, job, places.get(job.id)) for job in unsettled}


def _shown(facts: QueueFacts, job: JobState, place: stored_jobs.JobPlace | None) -> dict[str, Any]:
    waiting = waiting_job(facts, job, place)
    start = predicted_start(waiting, facts.pace)
    return {"why": _why(facts, job, waiting), "start": start.as_dict()}


def waiting_job(facts: QueueFacts, job: JobState, place: stored_jobs.JobPlace | None) -> Waiting:
    """Return what the prediction needs to know of *job*."""
    key = place.key if place is not None else ""
    return Waiting(
        state="claimed" if job.status == "in_flight" else job.status,
        now=facts.counts.now,
        key=shown_key(key),
        ahead=place.ahead if place is not None else 0,
        part=facts.part(key),
        by_key=facts.by_key,
        wake_at=job.not_before_ms if job.status == "scheduled" else None,
        is_paused=pause_of(facts.counts, job.tenant_id) is not None,
        consumers=facts.alive,
        able=None if job.function is None else facts.able.get(job.function),
    )


def pause_of(counts: QueueCounts, tenant_id: str | None) -> dict[str, Any] | None:
    """Return the pause that holds the jobs of *tenant_id* back; None if there is none."""
    tenant = None
    pause = counts.pauses.queue
    if pause is None and tenant_id is not None:
        tenant, pause = tenant_id, counts.pauses.held.get(tenant_id)
    if pause is None:
        return None
    return {"tenant_id": tenant, "since": iso(pause.at), "reason": pause.reason}


def _why(facts: QueueFacts, job: JobState, waiting: Waiting) -> str:
    if job.status == "in_flight":
        return f"it is running on {job.consumer_id}"
    if (pause := pause_of(facts.counts, job.tenant_id)) is not None:
        return paused(pause)
    if job.status == "scheduled":
        return f"it waits for its time, in {roughly((job.not_before_ms or 0) - waiting.now)}"
    if waiting.able == 0:
        return f"no living consumer of this queue knows its function {job.function!r}"
    if facts.is_capped(waiting.key):
        cap = facts.policy["max_concurrent_per_key"]
        return f"its key {waiting.key!r} has {cap} claims in flight, as many as it may"
    if waiting.ahead is None:
        return "jobs of its key go first"
    text = behind(waiting.ahead, "of its key" if waiting.by_key else "of the queue")
    return text if facts.alive else f"{text}; no consumer of this queue is alive"


def paused(pause: dict[str, Any]) -> str:
    """Say in words which pause holds a job back, since when, and why."""
    tenant, reason = pause["tenant_id"], pause["reason"]
    what = "its queue" if tenant is None else f"its tenant {tenant!r}"
    why = f": {reason}" if reason else ""
    return f"{what} is paused since {pause['since']}{why}"


def behind(ahead: int, where: str) -> str:
    """Say in words how many jobs go first.

    >>> behind(2, "of its key")
    '2 jobs of its key go first'
    """
    if not ahead:
        return f"it is the next {where}: it runs when a consumer that can handle it is free"
    return f"{counted(ahead, 'job')} {where} {'goes' if ahead == 1 else 'go'} first"
