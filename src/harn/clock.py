"""The only module that reads the time.

A `Clock` has the wall time for people and stores, the monotonic time for waiting, and timers.
Everything in harn that waits is built on `call_at`, so a test that brings its own clock (see
`harn.testing`) moves all of it by hand.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Protocol

PATIENCE = 1.0
"""Real seconds that a fake clock waits for threads; then it no longer waits for them."""


class Timer(Protocol):
    """A wake-up that can be cancelled."""

    def cancel(self) -> None:
        """Cancel it; does nothing when it has already fired."""


class Clock(Protocol):
    """A source of time."""

    activity: Activity
    is_fake: bool

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970, UTC."""

    def monotonic(self) -> float:
        """Return seconds that never go back, from an arbitrary start."""

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        """Call *wake* on the running loop once `monotonic()` reaches *when*.

        A *background* timer (a heartbeat, a report of something slow) is no reason for a fake
        clock to jump ahead.
        """


class Activity:
    """What is under way outside the loop, counted on the loop's thread.

    A fake clock waits for store operations before it counts the program as idle, and for worker
    threads up to `PATIENCE`. It does not jump while a worker thread or process of harn is busy. One
    that waits for the loop, through `from_thread`, is not busy.
    """

    __slots__ = ("_calls", "_when_less", "idle_fds", "idle_timers", "storing", "working")

    def __init__(self) -> None:
        self.storing: int = 0
        self.working: int = 0
        self.idle_fds: set[int] = set()
        """Sockets of harn that carry only hints, such as a LISTEN connection."""
        self.idle_timers: weakref.WeakSet[Timer] = weakref.WeakSet()
        """Background timers on the real loop: they wake no waiter."""
        self._calls: dict[object, None] = {}
        self._when_less: list[asyncio.Future[None]] = []

    def store_began(self) -> None:
        """Count one store operation that was submitted."""
        self.storing += 1

    def store_ended(self) -> None:
        """Count one store operation less; to be called after its result was delivered."""
        self.storing -= 1
        if not self.storing and self._when_less:
            self._less()

    def call_began(self, call: object) -> None:
        """Count *call*, which begins to work, or works again, on a thread of harn."""
        self.working += 1
        self._calls[call] = None

    def call_ended(self, call: object) -> None:
        """Count *call* no longer: it has ended, or waits for the loop."""
        self.working -= 1
        self._calls.pop(call, None)
        if self._when_less:
            self._less()

    def _less(self) -> None:
        for waiter in self._when_less:
            resolve(waiter)
        self._when_less.clear()

    async def stored(self) -> None:
        """Wait until no store operation is under way. Cancelling leaves nothing behind."""
        while self.storing:
            await self._until_less(None)

    async def worked(self) -> bool:
        """Wait until a call on a thread ends or waits for the loop; False if there is none.

        After `PATIENCE` those under way are no longer waited for: a thread may work forever.
        Cancelling leaves nothing behind.
        """
        if not self._calls:
            return False
        seen = dict(self._calls)
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        await self._until_less(PATIENCE)
        if loop.time() >= until:
            for call in seen:
                self._calls.pop(call, None)
        return True

    async def _until_less(self, patience: float | None) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._when_less.append(waiter)
        timer = None if patience is None else loop.call_later(patience, resolve, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            if waiter in self._when_less:
                self._when_less.remove(waiter)


class SystemClock:
    """The machine's own time."""

    is_fake = False

    def __init__(self) -> None:
        self.activity: Activity = Activity()

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    monotonic: ClassVar[staticmethod[[], float]] = staticmethod(time.monotonic)

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        """Call *wake* on the running loop at *when*, not before."""
        timer = asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), wake)
        if background:
            self.activity.idle_timers.add(timer)
        return timer


REAL_TIME: SystemClock = SystemClock()
"""For what runs in real time also when the runtime has a fake clock, such as threads."""


async def sleep_until(clock: Clock, when: float, *, background: bool = False) -> None:
    """Wait until *clock*'s monotonic time is *when*. Cancelling cancels the timer.

    A fake clock does not wait for what sleeps in the *background*.
    """
    if when <= clock.monotonic():
        await asyncio.sleep(0)
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(when, partial(resolve, woken), background=background)
    try:
        await woken
    finally:
        timer.cancel()


def resolve(future: asyncio.Future[None]) -> None:
    """Wake the waiter of *future*, unless that has happened already."""
    if not future.done():
        future.set_result(None)


def iso(ms: int) -> str:
    """Write wall milliseconds as ISO-8601 UTC; a year of more than four digits has its sign.

    >>> iso(0), iso(253_402_300_800_000)
    ('1970-01-01T00:00:00.000Z', '+10000-01-01T00:00:00.000Z')
    """
    seconds, millis = divmod(ms, 1000)
    if _USUAL[0] <= seconds < _USUAL[1]:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"
    # `datetime` ends with the year 9999, and a store can hold any time. The calendar is the same
    # every 400 years.
    eras, seconds = divmod(seconds, _ERA)
    moment = datetime.fromtimestamp(seconds, UTC)
    year = moment.year + 400 * eras
    written = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{written}-{moment:%m-%dT%H:%M:%S}.{millis:03d}Z"


_USUAL = (-30_610_224_000, 253_402_300_800)
"""The seconds at which the years 1000 and 10000 begin."""
_ERA = 146_097 * 86_400
"""The seconds of 400 years."""


def from_iso(text: str) -> int:
    """Read ISO-8601 (with an offset or `Z`) as wall milliseconds.

    >>> from_iso("2026-01-01T00:00:00Z")
    1767225600000
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; end it in Z for UTC")
    return round(moment.timestamp() * 1000)
