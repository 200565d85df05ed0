"""`async with mutex():` and `async with mutex(resource):`, critical sections without a name.

A bare `mutex()` is keyed by the place in the code that calls it (two on one line are two), one
with a resource by the resource's structural value. The two keep to themselves: neither can meet
a key of `sync_mutex_acquire`. A section is entered and left by tasks of its loop only, so that
nothing here needs a lock.
"""

from __future__ import annotations

from asyncio import Future, InvalidStateError, _get_running_loop
from collections.abc import Awaitable
from sys import _getframe
from types import TracebackType
from typing import Any

from harn.errors import HarnError
from harn.graceful import asked, raise_if_asked
from harn.runtime import Runtime, current_frame, current_frame_var, current_runtime
from harn.sync.permit_queue import PermitQueue, PermitWaiter
from harn.sync.structural_key import SameObject, structural
from harn.sync.wait_queue import GRANTED, WAITING, task_running_on

_frame_here = current_frame_var.get  # saves binding it anew each time


MOST_IDLE = 1024
"""Sections kept although nobody is in them: making one anew costs more than all the rest."""


class Mutexes:
    """The critical sections of one runtime, by key."""

    def __init__(self, runtime: Runtime) -> None:
        self.loop = runtime.loop
        self._runtime = runtime
        self.sections: dict[object, PermitQueue] = {}

    def open(self, key: object) -> PermitQueue:
        """Make the section under *key*."""
        if len(self.sections) >= MOST_IDLE:
            for each in [key for key, section in self.sections.items() if section.is_idle]:
                del self.sections[each]
        section = self.sections[key] = PermitQueue("mutex", None, 1, self._runtime)
        return section

    def forget(self, key: object) -> None:
        """Drop the section under *key* if nobody is in it."""
        section = self.sections.get(key)
        if section is not None and section.is_idle:
            del self.sections[key]


class Mutex:
    """A critical section for `async with`, made by `mutex()`; many tasks may use the same one."""

    # Filled in by `mutex()`: an `__init__` would be a good part of the cost of entering a section.
    __slots__ = ("_key", "_section", "_shown")
    _key: Any
    _shown: Any
    _section: PermitQueue | None

    async def __aenter__(self) -> None:
        if asked:
            raise_if_asked()
        task = (_frame_here(None) or current_frame()).task
        runtime = task.runtime
        try:
            mutexes = runtime._services[Mutexes]  # saves a call
            if _get_running_loop() is not mutexes.loop:
                runtime.check_here()
        except KeyError:
            mutexes = runtime.service(Mutexes)
        holder = task_running_on(mutexes.loop)
        section = mutexes.sections.get(self._key) or mutexes.open(self._key)
        if self._section is None:
            self._section = section
        elif section is not self._section:
            self._move_to(section)
        if section.free:
            # Nobody is in it, so nobody waits: what `enter` does, without the call.
            section.free = 0
            section.holder = holder
            return
        section.key = self._shown
        turn = PermitWaiter()
        turn.on = section
        turn.state = WAITING
        turn.holder = holder
        if section.holder is holder:
            section.enter(turn)  # which refuses
        future: Future[None] = Future(loop=mutexes.loop)  # `create_future` is one call more
        turn.future = future
        section.line.append(turn)
        section.queued += 1
        if section.free:
            section.serve(0.0)  # a finaliser has left it meanwhile
        if task.aio is holder:
            task.waiting = turn
        before, task.parked = task.parked, future
        try:
            await future
        except BaseException:
            section.leave(turn)
            raise
        finally:
            if task.parked is future:
                task.parked = before
            if task.waiting is turn:
                task.waiting = None

    def _move_to(self, section: PermitQueue) -> None:
        # An idle section may have been swept and made anew. One that is still in use can only be
        # that of another runtime, and leaving would then leave the wrong one.
        assert self._section is not None
        if not self._section.is_idle:
            raise HarnError("this mutex object is in use in another runtime; call mutex() there")
        self._section = section

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Awaitable[None]:
        section = self._section
        assert section is not None
        line = section.line
        while line:
            turn = line.popleft()
            if not turn.state:  # WAITING
                try:
                    turn.future.set_result(None)
                except InvalidStateError:
                    continue  # cancelled, and about to leave
                turn.state = GRANTED
                section.queued -= 1
                section.holder = turn.holder
                return section.done
        section.free = 1
        section.holder = None
        return section.done


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
