"""How full each bucket of a store was when it was last used, and the sweep of unused buckets."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from harn.ratelimit.records import Done
from harn.storage import limits

if TYPE_CHECKING:
    from harn.storage import Store

logger: logging.Logger = logging.getLogger("harn.ratelimit")

MOST_SHOWN = 1000
"""Buckets whose use is remembered for the metrics."""
SWEEP = 60.0
"""Seconds between two sweeps of unused buckets."""
FORGET_US = 3_600_000_000
"""Microseconds after which an unused bucket is swept."""


class BucketUse:
    """The use of a store's buckets as this process last saw it."""

    def __init__(self, store: Store, now: float) -> None:
        self.units: dict[str, tuple[int, float]] = {}
        """By key: units that counted, and the time (by our clock) when none of them does."""
        self.is_sweeping: bool = False
        self._store = store
        self._swept = now

    def note(self, done: Done, now: float) -> bool:
        """Remember the use that *done* reports; true if a sweep begins now."""
        for key, live, tail in done.use:
            if key in self.units or len(self.units) < MOST_SHOWN:
                self.units[key] = (live, now + (tail - done.now) / 1e6)
        if now - self._swept < SWEEP:
            return False
        self._swept = now
        self._sweep(done.now - FORGET_US)
        return True

    def _sweep(self, unused_since: int) -> None:
        self.is_sweeping = True
        swept = self._store.submit(lambda: limits.sweep(unused_since))
        swept.add_done_callback(self._end_sweep)

    def _end_sweep(self, swept: asyncio.Future[int]) -> None:
        self.is_sweeping = False
        if not swept.cancelled() and (error := swept.exception()) is not None:
            logger.debug("unused buckets were not removed: %s", error)
