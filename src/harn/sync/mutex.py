"""`async with mutex():` and `async with mutex(resource):`, critical sections without a name.

A bare `mutex()` is keyed by the place in the code that calls it (two on one line are two), one
with a resource by the resource's structural value. The two keep to themselves: neither can meet
a key of `sync_mutex_acquire`.
"""

from __future__ import annotations

from asyncio import Future
from sys import _getframe
from types import TracebackType
from typing import Any

from harn.errors import HarnError
from harn.runtime import Runtime, current_frame, current_frame_var, current_runtime
from harn.sync.keys import SameObject, structural
from harn.sync.turnstile import Turn, Turnstile
from harn.sync.waiters import WAITING, guard, task_running_on

_acquire, _release = guard.acquire, guard.release  # `with` costs twice as much
_frame_here = current_frame_var.get  # saves binding it anew each time


MOST_IDLE = 1024
"""Sections kept although nobody is in them: making one anew costs more than all the rest."""


class Mutexes:
    """The critical sections of one runtime, by key."""

    def __init__(self, runtime: Runtime) -> None:
        self.loop = runtime.loop
        self._runtime = runtime
        self.sections: dict[object, Turnstile] = {}

    def open(self, key: object) -> Turnstile:
        """Make the section under *key*; call under `guard`."""
        if len(self.sections) >= MOST_IDLE:
            for each in [key for key, section in self.sections.items() if section.is_idle]:
                del self.sections[each]
        section = self.sections[key] = Turnstile("mutex", None, 1, self._runtime)
        return section

    def forget(self, key: object) -> None:
        """Drop the section under *key* if nobody is in it; call under `guard`."""
        section = self.sections.get(key)
        if section is not None and section.is_idle:
            del self.sections[key]


class Mutex:
    """A critical section for `async with`, made by `mutex()`; many tasks may use the same one."""

    # Filled in by `mutex()`: an `__init__` would be a good part of the cost of entering a section.
    __slots__ = ("_key", "_section", "_shown")
    _key: Any
    _shown: Any
    _section: Turnstile | None

    async def __aenter__(self) -> None:
        task = (_frame_here(None) or current_frame()).task
        runtime = task.runtime
        try:
            mutexes = runtime._services[Mutexes]  # saves a call
        except KeyError:
            mutexes = runtime.service(Mutexes)
        holder = task_running_on(mutexes.loop)
        _acquire()
        try:
            section = mutexes.sections.get(self._key) or mutexes.open(self._key)
            if self._section is None:
                self._section = section
            elif section is not self._section:
                self._move_to(section)
            if section.free:
                # Nobody is in it, so nobody waits: what `enter` does, without the call.
                section.free = 0
                section.holder = holder
                section.held = 1
                return
            section.key = self._shown
            waiter = Turn()
            waiter.on = section
            waiter.state = WAITING
            waiter.holder = holder
            if section.holder is holder:
                section.enter(waiter)  # which refuses
            future: Future[None] = Future(loop=mutexes.loop)  # `create_future` is one call more
            waiter.future = future
            section.line.append(waiter)
            section.queued += 1
        finally:
            _release()
        if task.aio is holder:
            task.waiting = waiter
        try:
            await future
        except BaseException:
            section.leave(waiter)
            raise
        finally:
            if task.waiting is waiter:
                task.waiting = None

    def _move_to(self, section: Turnstile) -> None:
        # An idle section may have been swept and made anew. One that is still in use can only be
        # that of another runtime, and leaving would then leave the wrong one.
        assert self._section is not None
        if not self._section.is_idle:
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
        frame = _getframe(1)
        code = frame.f_code
        # A code object is slow to hash; the mutex and the caller keep it alive as long as it
        # matters, so that its id is its own.
        made = Mutex()
        made._key = (id(code), frame.f_lasti)
        made._shown = code
    else:
        key = structural(resource)
        made = ObjectMutex() if isinstance(key, SameObject) else Mutex()
        made._key = key
        made._shown = resource
    made._section = None
    return made
