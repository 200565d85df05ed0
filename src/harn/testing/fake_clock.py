"""A clock that a test moves by hand."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from harn.clock import Activity, Timer, from_iso, iso
from harn.current import current_runtime
from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption
from harn.option_checks import is_whole, whole_number
from harn.quiescence import can_look_into, outside_work, something_ready, threads_now
from harn.runtime import Runtime

EPSILON = 1e-9
BLIND_ROUNDS = 100
"""Turns of a loop that cannot be inspected, after which it counts as idle."""
MOST_ROUNDS = 100_000
"""Turns after which `settle` stops waiting for a program that is never idle."""
PATIENCE = 0.001
"""Real seconds between two looks at work outside the loop."""


class FakeClock:
    """Time that stands still until `advance` moves it.

    With *autojump* it also moves by itself: to the next timer, whenever nothing on the loop can
    run and no thread, process, socket or store operation is at work.

    >>> async def main() -> str:
    ...     async with fresh_runtime() as runtime:
    ...         await runtime.clock.advance("90m")
    ...         return iso(runtime.clock.now_ms())
    >>> asyncio.run(main())
    '2026-01-01T01:30:00.000Z'
    """

    is_fake = True

    def __init__(
        self, start: str | int | datetime = "2026-01-01T00:00:00Z", autojump: bool = False
    ) -> None:
        self.activity: Activity = Activity()
        self.autojump = autojump
        self._start_ms = _start_ms(start)
        self._elapsed = 0.0
        self._timers: list[_FakeTimer] = []
        self._sequence = 0
        self._live = 0  # timers that are a reason to jump
        self._dead = 0  # cancelled ones still in the heap
        self._advancing = 0
        self._watching = False
        self._known_threads = threads_now()

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970, UTC."""
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        """Return the seconds this clock has been moved."""
        return self._elapsed

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        """Call *wake* once the clock has been moved to *when*; at once if it is there already."""
        loop = asyncio.get_running_loop()
        if when <= self._elapsed + EPSILON:
            return loop.call_soon(wake)
        self._sequence += 1
        timer = _FakeTimer(self, when, self._sequence, wake, background)
        heapq.heappush(self._timers, timer)
        if not background:
            self._live += 1
            if self.autojump:
                self._watch(loop)
        return timer

    @property
    def pending(self) -> int:
        """How many timers are set, background ones aside."""
        return self._live

    async def advance(self, duration: Duration = 0, **parts: float) -> None:
        """Move time forward; due timers fire in order, and the tasks that they wake run.

        *duration* is `"5m"`, a number of seconds or a timedelta; or give the parts of one
        (`minutes=5`). Cancelling stops the clock where it is.
        """
        try:
            given = timedelta(**parts)
        except (OverflowError, ValueError):  # ValueError: NaN
            raise InvalidOption("duration", parts, "parts that a timedelta can hold") from None
        seconds = to_seconds(duration) + given.total_seconds()
        if seconds < 0:
            raise InvalidOption("duration", parts, "a time that does not go back")
        target = self._elapsed + seconds
        self._advancing += 1
        try:
            await self.settle()
            while self._timers and self._timers[0].when <= target + EPSILON:
                self._fire_next()
                await self.settle()
            self._elapsed = max(self._elapsed, target)
            await self.settle()
        finally:
            self._advancing -= 1
            if self.autojump and self._live:
                self._watch(asyncio.get_running_loop())

    async def settle(self) -> None:
        """Run everything that can run without moving time.

        Store operations and plain functions on threads are waited for. Cancelling leaves time
        where it is.
        """
        loop = asyncio.get_running_loop()
        if not can_look_into(loop):
            for _ in range(BLIND_ROUNDS):
                await asyncio.sleep(0)
                await self.activity.stored()
                await self.activity.worked()
            return
        for _ in range(MOST_ROUNDS):
            await asyncio.sleep(0)
            if something_ready(loop):
                continue
            if self.activity.storing:
                await self.activity.stored()
            elif not await self.activity.worked():
                return

    def _fire_next(self) -> None:
        timer = heapq.heappop(self._timers)
        wake = timer.wake
        if wake is None:
            self._dead -= 1
            return
        timer.wake = None
        self._live -= not timer.background
        self._elapsed = max(self._elapsed, timer.when)
        wake()

    def _note_cancelled(self, timer: _FakeTimer) -> None:
        self._live -= not timer.background
        self._dead += 1
        if self._dead > 64 and self._dead * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if timer.wake is not None]
            heapq.heapify(self._timers)
            self._dead = 0

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._watching:
            self._watching = True
            loop.call_soon(self._jump_if_idle, loop)

    def _jump_if_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watching = False
        if self._advancing or not self._live:
            return
        if not can_look_into(loop):
            raise InvalidOption("autojump", True, "an asyncio event loop, not another kind")
        if something_ready(loop):
            self._watch(loop)
        elif outside_work(loop, self.activity, self._known_threads):
            self._watching = True
            loop.call_later(PATIENCE, self._jump_if_idle, loop)
        else:
            self._fire_next()
            self._watch(loop)

    def __repr__(self) -> str:
        return f"<FakeClock {iso(self.now_ms())}>"


class _FakeTimer:
    """A timer in the heap; a cancelled one has no *wake* and is removed later."""

    __slots__ = ("background", "clock", "sequence", "wake", "when")

    def __init__(
        self,
        clock: FakeClock,
        when: float,
        sequence: int,
        wake: Callable[[], object],
        background: bool,
    ) -> None:
        self.clock = clock
        self.when = when
        self.sequence = sequence
        self.wake: Callable[[], object] | None = wake
        self.background = background

    def __lt__(self, other: _FakeTimer) -> bool:
        return (self.when, self.sequence) < (other.when, other.sequence)

    def cancel(self) -> None:
        if self.wake is not None:
            self.wake = None
            self.clock._note_cancelled(self)


def _start_ms(start: str | int | datetime) -> int:
    if isinstance(start, datetime) and start.tzinfo is not None:
        return round(start.timestamp() * 1000)
    if is_whole(start):
        return start
    try:
        if isinstance(start, str):
            return from_iso(start)
    except ValueError:
        pass
    raise InvalidOption("start", start, 'ISO-8601 with a time zone ("2026-01-01T00:00:00Z"), or ms')


@contextlib.asynccontextmanager
async def fresh_runtime(*, autojump: bool = False, **options: Any) -> AsyncIterator[Runtime]:
    """Open a runtime in memory with a `FakeClock` and a fixed seed, for one test.

    *options* are passed to `Runtime`, and override these defaults.

    >>> async def main() -> str:
    ...     async with fresh_runtime() as runtime:
    ...         return repr(runtime.clock)
    >>> asyncio.run(main())
    '<FakeClock 2026-01-01T00:00:00.000Z>'
    """
    options = {"clock": FakeClock(autojump=autojump), "seed": 0, **options}
    async with Runtime(**options) as runtime:
        yield runtime


class _MockedTime(FakeClock):
    """The clock of `mock_time`; leaving it as a context manager restores the old clock."""

    def __init__(self, ms: int, runtime: Runtime) -> None:
        super().__init__(ms, autojump=True)
        self._runtime = runtime
        self._replaced = runtime.clock
        self.activity: Activity = runtime.clock.activity
        runtime.clock = self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runtime.clock = self._replaced


def mock_time(ms: int) -> _MockedTime:
    """Give the current runtime a fake clock that reads *ms* since 1970.

    A sleep moves it instead of waiting; `advance` moves it by hand. It stays until the runtime
    ends, or until the end of the block when used as `with mock_time(...)`.

    >>> from harn import sleep
    >>> async def main() -> int:
    ...     with mock_time(1000) as clock:
    ...         await sleep("2s")
    ...         return clock.now_ms()
    >>> asyncio.run(main())
    3000
    """
    whole_number("ms", ms, least=0, wanted="whole milliseconds since 1970")
    return _MockedTime(ms, current_runtime())
