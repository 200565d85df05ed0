"""`async with mutex():` and `async with mutex(resource):`, critical sections without a name.

A bare `mutex()` is keyed by the place in the code that calls it (two on one line are two), one
with a resource by the resource's structural value. The two keep to themselves: neither can meet
a key of `sync_mutex_acquire`.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from harn.runtime import Runtime, current_frame, current_frame_var
from harn.sync.keys import structural
from harn.sync.turnstile import Turnstile, task_running_on
from harn.sync.waiters import WAITING, Waiter, guard

_acquire, _release = guard.acquire, guard.release  # `with` costs twice as much


MOST_SPARE = 64


class Mutexes:
    """The critical sections of one runtime that somebody is in, or waits for."""

    def __init__(self, runtime: Runtime) -> None:
        self.loop = runtime.loop
        self.active: dict[object, Turnstile] = {}
        self.spare: list[Turnstile] = []  # making one costs more than all the rest

    def open(self, key: object, shown: object) -> Turnstile:
        """Return the section under *key*; call under `guard`."""
        turnstile = self.active.get(key)
        if turnstile is None:
            spare = self.spare
            turnstile = spare.pop() if spare else Turnstile("mutex", shown, 1, self.loop)
            turnstile.key = shown
            self.active[key] = turnstile
        return turnstile

    def close(self, key: object, turnstile: Turnstile) -> None:
        """Forget the section under *key*, which nobody is in or waits for; under `guard`."""
        if self.active.pop(key, None) is not None and len(self.spare) < MOST_SPARE:
            turnstile.key = None
            self.spare.append(turnstile)


class Mutex(Waiter):
    """One passage through a critical section, made by `mutex()`."""

    verb = "permit"
    on: Turnstile

    def __init__(self, key: object, shown: object) -> None:
        self._key = key
        self._shown = shown

    async def __aenter__(self) -> None:
        task = (current_frame_var.get(None) or current_frame()).task
        self._mutexes = mutexes = task.runtime.service(Mutexes)
        self.holder = task_running_on(mutexes.loop)
        self.state = WAITING
        _acquire()
        try:
            self.on = turnstile = mutexes.open(self._key, self._shown)
            if turnstile.take(1, self.holder):
                return
            turnstile.join(self)
        finally:
            _release()
        if task.aio is self.holder:
            task.waiting = self
        try:
            await self.future
        except BaseException:
            with guard:
                turnstile.leave(self)
                if turnstile.is_idle:
                    mutexes.close(self._key, turnstile)
            raise
        finally:
            task.waiting = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        turnstile = self.on
        _acquire()
        try:
            turnstile.give_back(1, self.holder)
            if turnstile.free and not turnstile.queued:
                self._mutexes.close(self._key, turnstile)
        finally:
            _release()


_NO_RESOURCE: Any = object()


def mutex(resource: Any = _NO_RESOURCE) -> Mutex:
    """Make a critical section for `async with`: by *resource*, or by this place in the code.

    Every `mutex(resource)` with the same structural value excludes the others; a bare `mutex()`
    excludes only itself. First come, first served. `MutexReentered` if this task is inside the
    same section already. Cancelling while waiting gives up the place in the line.

    >>> import asyncio
    >>> async def main() -> str:
    ...     async with mutex({"account": 42}):
    ...         return "alone"
    >>> asyncio.run(main())
    'alone'
    """
    if resource is _NO_RESOURCE:
        frame = sys._getframe(1)
        # The code object itself is slow to hash; the mutex keeps it alive, so its id is safe.
        return Mutex((id(frame.f_code), frame.f_lasti), frame.f_code)
    return Mutex(structural(resource), resource)
