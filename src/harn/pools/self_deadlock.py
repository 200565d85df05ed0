"""Closures that wait for their own pool, and the moment when that can never end.

A closure may submit to its own pool and wait for the result, as long as a slot is free to run it.
Once every running closure waits for this pool (for a task of it, or for a place in its full
queue), no slot will ever become free. The last one to wait gets a `DeadlockError` instead.

A caller that waits for a pool, from inside or outside, also notes that in the runtime. When every
task waits, some of them on channels, that is a deadlock, too (HARN-ORC-012).
"""

from __future__ import annotations

import asyncio

from harn.context import Task, current_frame_var
from harn.current import current_frame
from harn.errors import DeadlockError
from harn.graceful_stop import asked, park, raise_if_asked, unpark


def began_waiting(what: object, waiter: asyncio.Future[None]) -> Task:
    """Note that the current task is about to wait on *waiter* for *what*: a pool, a task of one.

    A graceful stop ends the wait; if the stop came before, this raises `TaskCancelled`. Returns
    the task, to be passed to `ended_waiting` afterwards.
    """
    if asked:
        raise_if_asked()
    task = (current_frame_var.get(None) or current_frame()).task
    park(task, waiter)
    if task.aio is asyncio.current_task(waiter.get_loop()):
        task.waiting = what
    return task


def ended_waiting(task: Task, what: object, waiter: asyncio.Future[None]) -> None:
    """Note that the wait is over."""
    unpark(task, waiter)
    if task.waiting is what:
        task.waiting = None


class SelfWaits:
    """The waits of a pool's own running closures for this pool, oldest first."""

    __slots__ = ("_name", "waits")

    def __init__(self, name: str) -> None:
        self._name = name
        self.waits: dict[asyncio.Future[None], None] = {}

    def add(self, waiter: asyncio.Future[None], what: str, running: int) -> None:
        """Note that one of *running* closures will wait; `DeadlockError` if it would be the last.

        *what* says what it waits for, in the words of the error.
        """
        if len(self.waits) + 1 >= running:
            raise self._error(what)
        self.waits[waiter] = None

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Note that the wait is over, or is about to be."""
        if self.waits:
            self.waits.pop(waiter, None)

    def check(self, running: int) -> None:
        """If all of the *running* closures wait, end the newest wait with `DeadlockError`."""
        if self.waits and len(self.waits) >= running:
            waiter, _ = self.waits.popitem()
            if not waiter.done():
                waiter.set_exception(self._error("was the last to wait"))

    def _error(self, what: str) -> DeadlockError:
        return DeadlockError(
            f"pool {self._name!r}: every slot is held by a task that waits for this pool, and this "
            f"one {what}; give the pool more slots, or submit nested work to another pool"
        )
