"""The samples of `/metrics` and `orchestrator metrics` about worker queues."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from harn.orchestrator.views.queue_views import (
    MOST_KEYS,
    age_ms,
    claimers_policy,
    credit_of,
    deferrals_of,
    read_counts,
)
from harn.runtime import Runtime
from harn.storage.leases import LeaseStore, list_consumers
from harn.storage.queue import QueueCounts, ShareCounts, job_views, shown_key
from harn.telemetry.metrics import MOST_LABELS, OTHER, HistogramSample, Sample
from harn.workers import SchedulerPolicy

MOST_CONSUMERS = 10_000


async def queue_samples(runtime: Runtime) -> list[Sample | HistogramSample]:
    """Return the samples of every queue and its scheduler. Cancelling leaves nothing behind."""
    own = SchedulerPolicy.from_env()
    alive = await _consumers_alive(runtime)
    samples: list[Sample | HistogramSample] = []
    for counts, shares in await read_counts(runtime, MOST_KEYS):
        queue = counts.queue
        depth = counts.ready + counts.in_flight
        samples.append(Sample("harn_worker_queue_depth", depth, (queue,)))
        samples.append(Sample("harn_worker_consumers", alive[queue], (queue,)))
        samples += _job_samples(counts)
        samples += _share_samples(counts, shares, own)
    return samples


async def _consumers_alive(runtime: Runtime) -> Counter[str]:
    """Count the living consumers of each queue, in every process."""
    listing = runtime.service(LeaseStore).store
    rows = await listing.run(lambda: list_consumers(MOST_CONSUMERS), write=False)
    return Counter(queue for row in rows if row.expires_at > row.now for queue in row.queues)


def _job_samples(counts: QueueCounts) -> list[Sample | HistogramSample]:
    """Count how a queue's jobs ended, from the totals in the store."""
    queue = counts.queue
    dead = counts.dead + counts.retried  # a job that was retried was dead once, all the same
    outcomes = {
        "acked": counts.acked,
        "failed": counts.responses - counts.acked,  # each ack and each failure has a response
        "expired": counts.expired,
        "dead": dead,
        "cancelled": counts.cancelled,
        "purged": counts.purged,
    }
    since = counts.pauses.since
    paused = 0.0 if since is None else max(0, counts.now - since) / 1000
    return [
        Sample("harn_worker_queue_ready", counts.ready, (queue,)),
        Sample("harn_worker_queue_in_flight", counts.in_flight, (queue,)),
        Sample("harn_worker_queue_paused_seconds", paused, (queue,)),
        Sample("harn_worker_dead_letters_total", dead, (queue,)),
        *(Sample("harn_worker_jobs_total", n, (queue, how)) for how, n in outcomes.items()),
        _histogram("harn_worker_queue_claim_age_seconds", queue, counts.ages),
        _histogram("harn_worker_handler_seconds", queue, counts.handled),
    ]


def _histogram(name: str, queue: str, times: job_views.Histogram) -> HistogramSample:
    buckets = zip((*times.bounds, float("inf")), accumulate(times.counts), strict=True)
    return HistogramSample(name, tuple(buckets), times.total_ms / 1000, (queue,))


def _share_samples(
    counts: QueueCounts, shares: list[ShareCounts], own: SchedulerPolicy
) -> list[Sample | HistogramSample]:
    policy = claimers_policy(counts) or own.as_dict()
    values: dict[str, list[float]] = {}
    for place, share in enumerate(shares):
        key = shown_key(share.key)[:128] if place < MOST_LABELS else OTHER
        sums = values.setdefault(key, [0.0] * 5)
        sums[0] += share.selected
        sums[1] += deferrals_of(counts, share)
        sums[2] += share.promoted
        sums[3] += credit_of(counts, share, policy)
        sums[4] = max(sums[4], age_ms(counts, share.oldest_at) / 1000)
    if counts.dropped_selected or counts.dropped_deferred:
        sums = values.setdefault(OTHER, [0.0] * 5)
        sums[0] += counts.dropped_selected
        sums[1] += counts.dropped_deferred
    families = (
        "harn_scheduler_selections_total",
        "harn_scheduler_deferrals_total",
        "harn_scheduler_starvation_promotions_total",
        "harn_scheduler_deficit",
        "harn_scheduler_oldest_eligible_age_seconds",
    )
    return [
        Sample(family, sums[place], (counts.queue, counts.dimension, key))
        for place, family in enumerate(families)
        for key, sums in values.items()
    ]
