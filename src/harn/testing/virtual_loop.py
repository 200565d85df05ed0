"""An event loop whose time is virtual.

Where `FakeClock` moves only what asks harn for the time, this loop fakes `loop.time()` itself, so
that third-party code which calls `asyncio.sleep` follows too. Whenever every callback has
run and the loop would wait for its next timer, it jumps there instead, unless something real is
at work (a thread, a subprocess, a socket, a store operation): then it waits in real time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from harn.clock import Activity, Timer, from_iso
from harn.quiescence import outside_work, threads_now
from harn.runtime import Runtime

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

STEP = 0.01
"""The most real seconds to wait for work outside before looking again."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A selector event loop that jumps over idle time; a day of timers takes milliseconds.

    >>> async def main() -> float:
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
    ...     runner.run(main())
    3600.0
    """

    def __init__(self, start: str = "2026-01-01T00:00:00Z") -> None:
        self._virtual = 0.0
        self.harn_clock: _LoopClock = _LoopClock(self, from_iso(start))
        self._known_threads = threads_now()
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual

    def is_outside_at_work(self) -> bool:
        """Tell whether real work could still wake the loop, so that time must not jump."""
        return outside_work(self, self.harn_clock.activity, self._known_threads) is not None

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run *func* on a thread; virtual time waits for it."""
        activity = self.harn_clock.activity
        future = super().run_in_executor(executor, func, *args)
        activity.working += 1
        future.add_done_callback(lambda _: _one_less(activity))
        return future


def _one_less(activity: Activity) -> None:
    activity.working -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Moves virtual time instead of waiting, when nothing real is at work."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if timeout is None:
            return super().select(None)
        if not self._loop.is_outside_at_work():
            self._loop._virtual += timeout
            return events
        began = time.monotonic()
        events = super().select(min(timeout, STEP))
        self._loop._virtual += min(timeout, time.monotonic() - began)
        return events


class _LoopClock:
    """harn's clock on a virtual-time loop; a `Runtime` that is opened on the loop uses it."""

    is_fake = True

    def __init__(self, loop: VirtualTimeLoop, start_ms: int) -> None:
        self.activity: Activity = Activity()
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> int:
        return self._start_ms + round(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        timer = self._loop.call_at(when, wake)
        if background:
            self.activity.idle_timers.add(timer)
        return timer


def run_virtual(main: Callable[..., Any], /, *args: Any, **runtime_options: Any) -> Any:
    """Run `main(*args)` in a seeded runtime on a `VirtualTimeLoop`; return its result.

    >>> from harn import sleep
    >>> async def main() -> str:
    ...     await sleep("1d")
    ...     return "a day later"
    >>> run_virtual(main)
    'a day later'
    """

    async def inside() -> Any:
        async with Runtime(**{"seed": 0, **runtime_options}):
            return await main(*args)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(inside())
