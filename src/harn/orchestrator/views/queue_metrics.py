"""The samples of `/metrics` and `orchestrator metrics` about worker queues."""

from __future__ import annotations

from harn.orchestrator.views.queue_views import (
    MOST_KEYS,
    age_ms,
    claimers_policy,
    credit_of,
    deferrals_of,
    read_counts,
)
from harn.runtime import Runtime
from harn.storage.queue import AGE_BOUNDS, QueueCounts, ShareCounts, shown_key
from harn.telemetry.metrics import HistogramSample, Sample
from harn.workers import SchedulerPolicy

LABELLED_KEYS = 200
"""Keys of one queue that are labels of a metric; the rest are `other`."""


async def queue_samples(runtime: Runtime) -> list[Sample | HistogramSample]:
    """Return the samples of every queue and its scheduler. Cancelling leaves nothing behind."""
    own = SchedulerPolicy.from_env()
    samples: list[Sample | HistogramSample] = []
    for counts, shares in await read_counts(runtime, MOST_KEYS):
        queue = counts.queue
        depth = counts.ready + counts.in_flight
        samples.append(Sample("harn_worker_queue_depth", depth, (queue,)))
        samples.append(_ages(counts))
        samples += _share_samples(counts, shares, own)
    return samples


def _ages(counts: QueueCounts) -> HistogramSample:
    *by_bound, total_ms = counts.ages
    buckets, seen = [], 0
    for bound, count in zip((*AGE_BOUNDS, float("inf")), by_bound, strict=True):
        seen += count
        buckets.append((bound, seen))
    name = "harn_worker_queue_claim_age_seconds"
    return HistogramSample(name, tuple(buckets), total_ms / 1000, (counts.queue,))


def _share_samples(
    counts: QueueCounts, shares: list[ShareCounts], own: SchedulerPolicy
) -> list[Sample | HistogramSample]:
    policy = claimers_policy(counts) or own.as_dict()
    values: dict[str, list[float]] = {}
    for place, share in enumerate(shares):
        key = shown_key(share.key)[:128] if place < LABELLED_KEYS else "other"
        sums = values.setdefault(key, [0.0] * 5)
        sums[0] += share.selected
        sums[1] += deferrals_of(counts, share)
        sums[2] += share.promoted
        sums[3] += credit_of(counts, share, policy)
        sums[4] = max(sums[4], age_ms(counts, share.oldest_at) / 1000)
    if counts.dropped_selected or counts.dropped_deferred:
        sums = values.setdefault("other", [0.0] * 5)
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
