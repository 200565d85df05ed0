"""Every Prometheus family of harn, and the registry that collects them.

Hot paths count in plain integers. A room with metrics adds a source: a function that yields
`Sample`s at every scrape. All families are declared here, so that the reference, the dashboard
and the exposition cannot disagree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.telemetry")

MOST_LABELS = 200
"""Pools, buckets, keys or routes that have their own label; the rest is counted as `OTHER`."""
OTHER = "other"


class Family(msgspec.Struct, frozen=True):
    """A metric family: its name as scraped, its kind, its meaning and its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("harn_runtime_tasks", "gauge", "Detached tasks that this runtime holds."),
        Family("harn_event_log_dropped_total", "counter", "Audit records that could not be kept."),
        Family(
            "harn_event_log_damaged_total", "counter", "Damaged records that reading has skipped."
        ),
        Family(
            "harn_llm_calls_total",
            "counter",
            "Calls to models, by how they ended.",
            ("provider", "model", "outcome"),
        ),
        Family(
            "harn_llm_tokens_total",
            "counter",
            "Tokens that calls to models used, as the providers counted them.",
            ("provider", "model", "direction"),
        ),
        Family(
            "harn_llm_cost_usd_total",
            "counter",
            "Dollars that calls to models cost, where prices are configured.",
            ("provider", "model"),
        ),
        Family("harn_pool_active", "gauge", "Tasks that run in a pool.", ("pool",)),
        Family("harn_pool_queued", "gauge", "Tasks queued in a pool.", ("pool",)),
        Family("harn_pool_slots", "gauge", "A pool's `max_concurrent`.", ("pool",)),
        Family(
            "harn_pool_blocked_submitters",
            "gauge",
            "Submitters that wait for a place in a pool's queue.",
            ("pool",),
        ),
        Family("harn_pool_tasks_total", "counter", "Tasks that have ended.", ("pool", "status")),
        Family(
            "harn_pool_idempotency_conflicts_total",
            "counter",
            "Idempotency keys that came back with another call.",
            ("pool",),
        ),
        Family(
            "harn_trigger_dispatches_total",
            "counter",
            "Trigger dispatches that ended, by how.",
            ("status",),
        ),
        Family("harn_trigger_duplicates_total", "counter", "Events that were known already."),
        Family("harn_trigger_in_flight", "gauge", "Trigger dispatches under way."),
        Family(
            "harn_trigger_requests_total",
            "counter",
            "Requests to triggers, by how they were answered.",
            ("answer",),
        ),
        Family("harn_worker_queue_depth", "gauge", "Jobs ready or in flight.", ("queue",)),
        Family("harn_worker_queue_ready", "gauge", "Jobs that wait for a consumer.", ("queue",)),
        Family("harn_worker_queue_in_flight", "gauge", "Jobs in flight.", ("queue",)),
        Family(
            "harn_worker_queue_paused_seconds",
            "gauge",
            "How long the queue, or a tenant of it, has been paused; 0 if nothing is.",
            ("queue",),
        ),
        Family(
            "harn_worker_consumers",
            "gauge",
            "Consumers of a queue that are alive, in every process.",
            ("queue",),
        ),
        Family(
            "harn_worker_jobs_total",
            "counter",
            "How attempts (`failed`, `expired`) and jobs (the other outcomes) have ended.",
            ("queue", "outcome"),
        ),
        Family(
            "harn_worker_dead_letters_total",
            "counter",
            "Jobs that have become dead.",
            ("queue",),
        ),
        Family(
            "harn_worker_handler_seconds",
            "histogram",
            "How long handlers worked until they acked or failed.",
            ("queue",),
        ),
        Family(
            "harn_worker_queue_claim_age_seconds",
            "histogram",
            "How long jobs had waited when they were claimed.",
            ("queue",),
        ),
        Family(
            "harn_scheduler_selections_total",
            "counter",
            "Jobs that the scheduler chose.",
            ("queue", "fairness_dimension", "fairness_key"),
        ),
        Family(
            "harn_scheduler_deferrals_total",
            "counter",
            "Claims that found nothing because every key was at its cap.",
            ("queue", "fairness_dimension", "fairness_key"),
        ),
        Family(
            "harn_scheduler_starvation_promotions_total",
            "counter",
            "Jobs promoted because they had waited too long.",
            ("queue", "fairness_dimension", "fairness_key"),
        ),
        Family(
            "harn_scheduler_deficit",
            "gauge",
            "Credit a key has left in this round.",
            ("queue", "fairness_dimension", "fairness_key"),
        ),
        Family(
            "harn_scheduler_oldest_eligible_age_seconds",
            "gauge",
            "How long a key's oldest ready job has waited.",
            ("queue", "fairness_dimension", "fairness_key"),
        ),
        Family("harn_supervisors", "gauge", "Supervisors that have not ended."),
        Family(
            "harn_supervisor_children",
            "gauge",
            "Children of supervisors that have not ended, by what they are doing.",
            ("status",),
        ),
        Family(
            "harn_supervisor_events_total",
            "counter",
            "What happened to supervised children, by kind of event.",
            ("event",),
        ),
        Family(
            "harn_ratelimit_admitted_total",
            "counter",
            "Acquires that this runtime's limiter admitted.",
            ("bucket",),
        ),
        Family(
            "harn_ratelimit_waited_total",
            "counter",
            "Acquires that had to wait, admitted in the end or not.",
            ("bucket",),
        ),
        Family(
            "harn_ratelimit_wait_seconds_total",
            "counter",
            "Seconds that acquires have waited.",
            ("bucket",),
        ),
        Family(
            "harn_ratelimit_timed_out_total",
            "counter",
            "Acquires that gave up at their timeout.",
            ("bucket",),
        ),
        Family(
            "harn_ratelimit_settled_total",
            "counter",
            "Reservations corrected to what was really used.",
            ("bucket",),
        ),
        Family(
            "harn_ratelimit_used_units",
            "gauge",
            "Units that count in the current window, as this runtime last saw it.",
            ("bucket",),
        ),
        Family("harn_ratelimit_waiting", "gauge", "Acquires of this runtime that wait."),
    )
}


class Sample(msgspec.Struct, frozen=True):
    """One value of a family."""

    family: str
    value: float
    labels: tuple[str, ...] = ()


class HistogramSample(msgspec.Struct, frozen=True):
    """The buckets of a histogram: *buckets* are (upper bound, cumulative count) pairs."""

    family: str
    buckets: tuple[tuple[float, int], ...]
    total: float
    labels: tuple[str, ...] = ()


Source = Callable[[], Iterable[Sample | HistogramSample]]


class Metrics:
    """A runtime's metrics: sources in, Prometheus text out."""

    def __init__(self, runtime: Runtime) -> None:
        self._sources: list[Source] = []
        self._registry: CollectorRegistry | None = None
        self.add(lambda: [Sample("harn_runtime_tasks", len(runtime._detached))])

    def add(self, source: Source) -> None:
        """Ask *source* for its samples at every scrape."""
        self._sources.append(source)

    @property
    def registry(self) -> CollectorRegistry:
        """A Prometheus registry with all families of harn, for an exposition of your own."""
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def exposition(self, also: Iterable[Sample | HistogramSample] = ()) -> str:
        """Return the Prometheus text of every family; *also* are samples of this moment only."""
        from prometheus_client import generate_latest

        self._sources.append(lambda: also)
        try:
            return generate_latest(self.registry).decode()
        finally:
            self._sources.pop()

    def collect(self) -> Iterable[Any]:
        """Yield Prometheus metric objects, as a registry's collector does."""
        gathered: dict[str, list[Sample | HistogramSample]] = {name: [] for name in FAMILIES}
        for source in self._sources:
            try:
                for sample in source():
                    gathered[sample.family].append(sample)
            except Exception:  # one broken source must not hide the others
                logger.exception("a metrics source failed")
        for name, samples in gathered.items():
            yield _metric(FAMILIES[name], samples)


def _metric(family: Family, samples: Iterable[Sample | HistogramSample]) -> Any:
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
        for sample in samples:
            assert isinstance(sample, HistogramSample)
            buckets = [(_bound(bound), float(count)) for bound, count in sample.buckets]
            histogram.add_metric(list(sample.labels), buckets, sample.total)
        return histogram
    of_kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = of_kind(family.name, family.meaning, labels=family.labels)
    for sample in samples:
        assert isinstance(sample, Sample)
        metric.add_metric(list(sample.labels), sample.value)
    return metric


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"
