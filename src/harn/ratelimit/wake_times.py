"""When each waiting caller is asked for again."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from harn.ratelimit.records import Waits
from harn.ratelimit.waiting_callers import Caller
from harn.sync import WAITING

if TYPE_CHECKING:
    from harn.clock import Clock, Timer

SOONEST, LATEST = 0.001, 0.032
"""Seconds between two requests while there is room, but a ticket of another process is first."""
EPSILON = 1e-9
"""Seconds that a timer may fire early, because floats are rounded."""


def pause_after(verdict: Waits, backoff: float, longest: float | None) -> tuple[float, float]:
    """Return the seconds until a caller is asked for again, and the backoff to remember.

    If there is room now but a ticket of another process is first, ask again soon, then less and
    less often. No pause is longer than *longest*, if that is given.

    >>> pause_after(Waits(7, 2_000_000, behind=False), 0.0, 0.25)
    (0.25, 0.0)
    >>> pause_after(Waits(7, 0, behind=True), 0.001, 0.25)
    (0.002, 0.002)
    """
    if verdict.wait is None:
        return float("inf"), backoff
    if verdict.behind and not verdict.wait:
        pause = backoff = min(max(SOONEST, backoff * 2), LATEST)
    else:
        pause, backoff = verdict.wait / 1e6, 0.0
    return (pause if longest is None else min(pause, longest)), backoff


class WakeTimes:
    """The times at which callers are asked for again, and one timer for the first of them."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._times: list[tuple[float, int, Caller]] = []
        self._count = 0
        self._timer: tuple[float, Timer] | None = None

    def plan(self, caller: Caller, at: float) -> None:
        """Ask for *caller* again at *at*, or at its deadline if that comes first."""
        if caller.deadline is not None:
            at = min(at, caller.deadline)
        if at == float("inf"):
            caller.ask_at = None
            return
        caller.ask_at = at
        self._count += 1  # a tie-breaker: the heap would otherwise compare callers
        heapq.heappush(self._times, (at, self._count, caller))

    def take_due(self) -> list[Caller]:
        """Take the callers whose time has come."""
        now = self._clock.monotonic() + EPSILON
        found = []
        while self._times and self._times[0][0] <= now:
            at, _, caller = heapq.heappop(self._times)
            if caller.ask_at == at and caller.state == WAITING and not caller.is_asked:
                found.append(caller)
        return found

    def set_timer(self, also_at: float | None) -> None:
        """Wake at the first of these times, or at *also_at* if that comes first."""
        while self._times and self._times[0][2].ask_at != self._times[0][0]:
            heapq.heappop(self._times)  # replaced by a later plan, or the caller no longer waits
        when = self._times[0][0] if self._times else None
        if also_at is not None:
            when = also_at if when is None else min(when, also_at)
        if self._timer is not None:
            if self._timer[0] == when:
                return
            self._timer[1].cancel()
            self._timer = None
        if when is not None:
            self._timer = (when, self._clock.call_at(when, self._ring))

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._wake()
