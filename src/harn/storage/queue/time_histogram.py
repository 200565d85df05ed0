"""Histograms in a queue's row: how long its jobs waited, and how long their handlers worked."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

AGE_BOUNDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
"""Upper bounds, in seconds, of the histogram of how long jobs waited for their claim."""
HANDLER_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds, in seconds, of the histogram of how long handlers worked."""


def add_times(stored: str, times_ms: Iterable[int], bounds: Sequence[float]) -> str:
    """Count times in a histogram: a number for each bound and beyond, then the sum."""
    counts = read_times(stored, bounds)
    for ms, count in Counter(times_ms).items():  # of one batch, many are equal
        counts[bisect_left(bounds, ms / 1000)] += count
        counts[-1] += ms * count
    return ",".join(map(str, counts))


def read_times(stored: str, bounds: Sequence[float]) -> list[int]:
    """Return the counts by bound, the count beyond, and the sum in milliseconds."""
    return list(map(int, stored.split(","))) if stored else [0] * (len(bounds) + 2)
