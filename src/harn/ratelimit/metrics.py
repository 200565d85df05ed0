"""The limiter's metrics for Prometheus: counters per bucket, for a bounded number of buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from harn.ratelimit.records import Granted, NoRoom, Want
from harn.telemetry.metrics import MOST_LABELS, OTHER, Metrics, Sample

if TYPE_CHECKING:
    from harn.ratelimit.store_limiter import StoreLimiter
    from harn.runtime import Runtime

ADMITTED, WAITED, TIMED_OUT, SETTLED, WAIT_MS = range(5)


class LimiterMetrics:
    """Counts of grants, waits, timeouts and settlements of each bucket, in this runtime."""

    def __init__(self, runtime: Runtime, store_limiters: Collection[StoreLimiter]) -> None:
        self._store_limiters = store_limiters
        self._counts: dict[str, list[int]] = {}
        runtime.service(Metrics).add(self.samples)

    def asked(self, wants: Iterable[Want], verdict: Granted | NoRoom, waited_ms: int) -> None:
        """Count one acquire, once for each of its buckets."""
        outcome = ADMITTED if isinstance(verdict, Granted) else TIMED_OUT
        for want in wants:
            counts = self._of(want.key)
            counts[outcome] += 1
            if waited_ms:
                counts[WAITED] += 1
                counts[WAIT_MS] += waited_ms

    def settled(self, key: str) -> None:
        """Count one corrected reservation."""
        self._of(key)[SETTLED] += 1

    def _of(self, key: str) -> list[int]:
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= MOST_LABELS:
                key = OTHER
            found = self._counts.setdefault(key, [0] * 5)
        return found

    def samples(self) -> Iterable[Sample]:
        """Yield every counter, then the units in use of each bucket when it was last read."""
        for key, counts in self._counts.items():
            yield Sample("harn_ratelimit_admitted_total", counts[ADMITTED], (key,))
            yield Sample("harn_ratelimit_waited_total", counts[WAITED], (key,))
            yield Sample("harn_ratelimit_wait_seconds_total", counts[WAIT_MS] / 1000, (key,))
            yield Sample("harn_ratelimit_timed_out_total", counts[TIMED_OUT], (key,))
            yield Sample("harn_ratelimit_settled_total", counts[SETTLED], (key,))
        used: dict[str, int] = {}
        for each in self._store_limiters:
            now = each.clock.monotonic()
            for key, (units, until) in each.use.units.items():
                label = key if key in self._counts else OTHER
                used[label] = used.get(label, 0) + (units if until > now else 0)
        for key, units in used.items():
            yield Sample("harn_ratelimit_used_units", units, (key,))
        waiting = sum(each.waiting for each in self._store_limiters)
        yield Sample("harn_ratelimit_waiting", waiting)
