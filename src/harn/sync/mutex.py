"""`async with mutex():` and `async with mutex(resource):`, critical sections without a name.

A bare `mutex()` is keyed by the place in the code that calls it (two on one line are two), one
with a resource by the resource's structural value. The two keep to themselves: neither can meet
a key of `sync_mutex_acquire`.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from harn.errors import HarnError
from harn.runtime import Runtime, current_frame, current_frame_var, current_runtime
from harn.sync.keys import SameObject, structural
from harn.sync.turnstile import Turnstile
from harn.sync.waiters import Waiter, guard, task_running_on

_acquire, _release = guard.acquire, guard.release  # `with` costs twice as much


MOST_IDLE = 1024
"""Sections kept although nobody is in them: making one anew costs more than all the rest."""


class Mutexes:
    """The critical sections of one runtime, by key."""

    def __init__(self, runtime: Runtime) -> None:
        self.loop = runtime.loop
        self.sections: dict[object, Turnstile] = {}

    def open(self, key: object) -> Turnstile:
        """Make the section under *key*; call under `guard`."""
        if len(self.sections) >= MOST_IDLE:
            for each in [key for key, section in self.sections.items() if section.is_idle]:
                del self.sections[each]
        section = self.sections[key] = Turnstile("mutex", None, 1, self.loop)
        return section

    def forget(self, key: object) -> None:
        """Drop the section under *key* if nobody is in it; call under `guard`."""
        section = self.sections.get(key)
        if section is not None and section.is_idle:
            del self.sections[key]


class Mutex:
    """A critical section for `async with`, made by `mutex()`; many tasks may use the same one."""

    __slots__ = ("_key", "_section", "_shown")

    def __init__(self, key: object, shown: object) -> None:
        self._key = key
        self._shown = shown
        self._section: Turnstile | None = None

    async def __aenter__(self) -> None:
        task = (current_frame_var.get(None) or current_frame()).task
        runtime = task.runtime
        mutexes = runtime._services.get(Mutexes) or runtime.service(Mutexes)  # saves a call
        holder = task_running_on(mutexes.loop)
        _acquire()
        try:
            section = mutexes.sections.get(self._key) or mutexes.open(self._key)
            if section is not self._section:
                self._move_to(section)
            if section.free:
                # Nobody is in it, so nobody waits: what `enter` does, without the call.
                section.free = 0
                section.holder = holder
                section.held = 1
                return
            section.key = self._shown
            waiter = Waiter()
            waiter.verb, waiter.on, waiter.holder = "permit", section, holder
            if section.enter(waiter):
                return
        finally:
            _release()
        if task.aio is holder:
            task.waiting = waiter
        try:
            await waiter.future
        except BaseException:
            section.leave(waiter)
            raise
        finally:
            task.waiting = None

    def _move_to(self, section: Turnstile) -> None:
        # An idle section may have been swept and made anew. One that is still in use can only be
        # that of another runtime, and leaving would then leave the wrong one.
        if self._section is not None and not self._section.is_idle:
            raise HarnError("this mutex object is in use in another runtime; call mutex() there")
        self._section = section

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        section = self._section
        assert section is not None
        _acquire()
        try:
            if section.line:
                section.hand_over()
            else:
                section.free = 1
                section.holder = None
        finally:
            _release()


class ObjectMutex(Mutex):
    """A section keyed by an object's identity; the key is forgotten when nobody is inside."""

    __slots__ = ()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, trace)
        with guard:
            current_runtime().service(Mutexes).forget(self._key)


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
        # A code object is slow to hash; the mutex and the caller keep it alive as long as it
        # matters, so that its id is its own.
        return Mutex((id(frame.f_code), frame.f_lasti), frame.f_code)
    key = structural(resource)
    return (ObjectMutex if isinstance(key, SameObject) else Mutex)(key, resource)
