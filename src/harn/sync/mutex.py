"""`async with mutex():` and `async with mutex(resource):`, critical sections without a name.

The key of a bare `mutex()` is the place in the code that calls it (two calls on one line are two
places); with a resource, it is the resource's structural value. The two kinds of key never equal
each other, nor a key of `sync_mutex_acquire`. Only tasks of one loop enter and leave a section, so
nothing here needs a lock.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Awaitable
from sys import _getframe
from threading import get_ident
from types import TracebackType
from typing import Any

from harn.context import Task, current_frame_var
from harn.current import current_frame, current_runtime
from harn.duration import Duration, to_seconds
from harn.errors import HarnError
from harn.event_loop import task_running_on
from harn.graceful_stop import asked, raise_if_asked
from harn.runtime import Runtime
from harn.sync.permit_queue import PermitQueue, PermitWaiter
from harn.sync.structural_key import SameObject, structural

_frame_here = current_frame_var.get  # saves an attribute lookup for each section


MOST_IDLE = 1024
"""Sections kept while no task is in them: making a section costs more than entering it."""


class Mutexes:
    """The critical sections of one runtime, by key."""

    def __init__(self, runtime: Runtime) -> None:
        self.loop: AbstractEventLoop = runtime.loop
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
        """Drop the section under *key* if no task is in it."""
        section = self.sections.get(key)
        if section is not None and section.is_idle:
            del self.sections[key]


class Mutex:
    """A critical section for `async with`, made by `mutex()`; many tasks may use the same one.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     async def enter(name: str) -> None:
    ...         async with harn.mutex("repo"):
    ...             order.append(name)
    ...
    ...     order: list[str] = []
    ...     await harn.parallel_each(["a", "b"], enter)
    ...     return order
    >>> harn.run(main)
    ['a', 'b']
    """

    # Set by `mutex()`: an `__init__` would be a large part of the cost of entering a section.
    __slots__ = ("_key", "_section", "_shown", "_timeout")
    _key: Any
    _timeout: float | None
    """Seconds to wait at most."""
    _shown: Any
    _section: PermitQueue | None

    # Not `async`, like `__aexit__`: a future that is done is cheaper to await than a coroutine.
    def __aenter__(self) -> Awaitable[object]:
        if asked:
            raise_if_asked()
        task = (_frame_here(None) or current_frame()).task
        runtime = task.runtime
        try:
            mutexes = runtime._services[Mutexes]  # saves a call
        except KeyError:
            mutexes = runtime.service(Mutexes)
        holder = task_running_on(mutexes.loop)
        if holder is None or get_ident() != runtime._thread_id:
            runtime.check_here()
        section: PermitQueue = mutexes.sections.get(self._key) or mutexes.open(self._key)
        if self._section is None:
            self._section = section
        elif section is not self._section:
            self._move_to(section)
        if section.free:
            # What `PermitQueue.enter` does for the only permit. Measured: with the calls instead,
            # an uncontended section takes 1.8 times as long.
            section.free = 0
            section.holder = holder
            return section.done
        section.key = self._shown
        waiter = PermitWaiter()
        waiter.on = section
        waiter.holder = holder
        if self._timeout is not None:
            return self._wait_at_most(self._timeout, waiter, task)
        return waiter.wait_in_queue(task)

    async def _wait_at_most(self, seconds: float, waiter: PermitWaiter, task: Task) -> None:
        waiter.since = waiter.on.monotonic()
        if not await waiter.wait_in_queue(task, seconds):
            raise waiter.on.timed_out(seconds)

    def _move_to(self, section: PermitQueue) -> None:
        # An idle section may have been dropped and made again. A section in use can only be that
        # of another runtime; then `__aexit__` would leave the wrong section.
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
        section: Any = self._section
        if section.waiters:
            section.pass_on(0.0)  # no time is needed: a section has no counters
        else:
            # What `pass_on` does then. Measured: with the call, an uncontended section takes 5 %
            # longer.
            section.free = 1
            section.holder = None
        return section.done  # type: ignore[no-any-return]


class ObjectMutex(Mutex):
    """A section keyed by an object's identity; the key is forgotten when no task is inside."""

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


def mutex(resource: Any = _NO_RESOURCE, *, timeout: Duration | None = None) -> Mutex:
    """Return a critical section for `async with`, for *resource* or for this place in the code.

    Sections for the same structural value exclude each other; a bare `mutex()` excludes only
    itself. First come, first served. With a *timeout*, entering waits at most that long and then
    raises `AcquireTimeout`, which is also a `TimeoutError`. Without one, `MutexReentered` is raised
    if this task is already inside the same section. Cancelling while waiting leaves the queue.

    >>> import asyncio
    >>> async def main() -> str:
    ...     async with mutex({"account": 42}, timeout="1s"):
    ...         return "alone"
    >>> asyncio.run(main())
    'alone'
    """
    if resource is _NO_RESOURCE:
        frame = _getframe(1)
        code = frame.f_code
        # A code object is slow to hash. Its id is unique while it lives, and the mutex and its
        # caller keep it alive as long as the key is used.
        made = Mutex()
        made._key = (id(code), frame.f_lasti)
        made._shown = code
    else:
        # Measured: without the call for a string, which is its own key, it takes a twelfth less.
        key = resource if type(resource) is str else structural(resource)
        made = ObjectMutex() if type(key) is SameObject else Mutex()
        made._key = key
        made._shown = resource
    made._section = None
    made._timeout = None if timeout is None else to_seconds(timeout, "timeout")
    return made
