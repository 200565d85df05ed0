"""The rows that a grant has charged: they can be corrected, or counted from a later time on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harn.ratelimit.metrics import LimiterMetrics
from harn.ratelimit.records import Correction, Granted, Want

if TYPE_CHECKING:
    from harn.ratelimit.store_limiter import StoreLimiter


class StoredReservation:
    """The rows that a grant has charged, and the store that can correct them."""

    __slots__ = ("_at", "_began", "_metrics", "_rows", "_store_limiter", "_wants")

    def __init__(
        self,
        metrics: LimiterMetrics,
        store_limiter: StoreLimiter,
        wants: tuple[Want, ...],
        got: Granted,
    ) -> None:
        self._metrics = metrics
        self._store_limiter = store_limiter
        self._at = got.at
        self._began = store_limiter.clock.monotonic()
        read_now = store_limiter.read_now
        if read_now is not None and got.at >= 0:  # the loop may have read the answer late
            self._began -= (read_now() - got.at) / 1e6
        self._wants = wants
        self._rows = got.rows

    async def settle(self, actual: Mapping[str, int]) -> bool:
        """Correct the units that were charged, by key; false when the window has passed.

        Cancelling does not stop it.
        """
        corrections: dict[int, Correction] = {}
        for number, (want, row) in enumerate(zip(self._wants, self._rows, strict=True)):
            if want.key not in actual:
                continue
            units = min(actual[want.key], want.limit)
            bucket, seq = row[:2] if row is not None else (0, None)
            if seq is not None or (units and not self._has_passed(want)):
                corrections[number] = Correction(want, bucket, seq, self._at, units)
        if not corrections:
            return False
        landed = await self._store_limiter.correct(list(corrections.values()))
        rows = list(self._rows)
        for (number, correction), found in zip(corrections.items(), landed, strict=True):
            if found is not None:
                rows[number] = (*found, correction.units)
                self._metrics.settled(correction.want.key)
        self._rows = tuple(rows)
        return any(found is not None for found in landed)

    async def renew(self) -> bool:
        """Count the units from now on; false when they no longer count.

        They never stop counting in between. Cancelling may leave them counted twice for a window.
        """
        held = [(number, row) for number, row in enumerate(self._rows) if row is not None]
        if not held:
            return True
        if any(self._has_passed(self._wants[number]) for number, _ in held):
            return False
        corrections: list[Correction] = []
        for number, (bucket, seq, units) in held:
            want = self._wants[number]
            corrections.append(Correction(want, bucket, seq, self._at, 0))
            corrections.append(Correction(want, bucket, None, -1, units))
        began = self._store_limiter.clock.monotonic()
        landed = await self._store_limiter.correct(corrections)
        rows = list(self._rows)
        for (number, (_, _, units)), found in zip(held, landed[1::2], strict=True):
            rows[number] = None if found is None else (*found, units)
        self._rows, self._at, self._began = tuple(rows), -1, began
        return None not in landed

    @property
    def age(self) -> float:
        """Seconds since the units were charged, by our clock."""
        return self._store_limiter.clock.monotonic() - self._began

    def _has_passed(self, want: Want) -> bool:
        return self.age * 1e6 >= want.span
