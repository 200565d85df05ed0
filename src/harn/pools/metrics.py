"""The metrics of a runtime's pools for Prometheus, for a bounded number of pools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from harn.pools.pool import Pool
from harn.telemetry.metrics import MOST_LABELS, OTHER, Sample


def pool_samples(pools: Iterable[Pool]) -> list[Sample]:
    """Return the samples of *pools*, oldest first; those of the last ones are summed up."""
    summed: dict[tuple[str, tuple[str, ...]], float] = {}
    for number, pool in enumerate(pools):
        label = pool.name if number < MOST_LABELS else OTHER
        for family, value, *labels in _measured(pool):
            series = family, (label, *labels)
            summed[series] = summed.get(series, 0) + value
    return [Sample(family, value, labels) for (family, labels), value in summed.items()]


def _measured(pool: Pool) -> Iterator[tuple[Any, ...]]:
    slots = pool._slots
    yield "harn_pool_active", slots.running
    yield "harn_pool_queued", slots.queued
    yield "harn_pool_slots", pool.max_concurrent
    yield "harn_pool_blocked_submitters", slots.blocked.count
    for status, count in slots.ended.counts.items():
        yield "harn_pool_tasks_total", count, status
    yield "harn_pool_idempotency_conflicts_total", slots.keys.conflicts
