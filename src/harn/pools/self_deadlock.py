"""Closures that wait for their own pool, and the moment when that can never end.

A closure may submit to its own pool and wait for the result, as long as a slot is free to run it.
Once every running closure waits for this pool (for a task of it, or for a place in its full
queue), no slot will ever come free. The last one to wait is told with a `DeadlockError` instead.

Whoever waits for a pool, from inside or outside, also says so to the runtime: when everybody is
blocked, some of them on channels, it is a deadlock all the same (HARN-ORC-012).
"""

from __future__ import annotations

import asyncio

from harn.context import Task, current_frame_var
from harn.current import current_frame
from harn.errors import DeadlockError
from harn.graceful import asked, raise_if_asked


def began_waiting(what: object, waiter: asyncio.Future[None]) -> Task:
    """Note that the current task is about to wait on *waiter* for *what*: a pool, a task of one.

    A graceful stop ends the wait; `TaskCancelled` comes out here if it came before. Returns the
    task, to be passed to `ended_waiting` afterwards.
    """
    if asked:
        raise_if_asked()
    task = (current_frame_var.get(None) or current_frame()).task
    task.parked = waiter
    if task.aio is asyncio.current_task(waiter.get_loop()):
        task.waiting = what
    return task


def ended_waiting(task: Task, what: object, waiter: asyncio.Future[None]) -> None:
    """Note that the wait is over."""
    if task.parked is waiter:
        task.parked = None
    if task.waiting is what:
        task.waiting = None


class SelfWaits:
    """The waits of a pool's own running closures for this pool, oldest first."""

    __slots__ = ("_name", "running", "waits")

    def __init__(self, name: str) -> None:
        self._name = name
        self.waits: dict[asyncio.Future[None], None] = {}
        self.running = 0
        """How many closures of the pool are running, the waiting ones included."""

    def add(self, waiter: asyncio.Future[None], what: str) -> None:
        """Note that a closure is about to wait; `DeadlockError` if it would be the last."""
        if len(self.waits) + 1 >= self.running:
            raise self._error(what)
        self.waits[waiter] = None

    def discard(self, waiter: asyncio.Future[None]) -> None:
        """Note that the wait is over, or is about to be."""
        if self.waits:
            self.waits.pop(waiter, None)

    def check(self) -> None:
        """After one closure ended: if only waiting ones are left, tell the newest."""
        if self.waits and len(self.waits) >= self.running:
            waiter, _ = self.waits.popitem()
            if not waiter.done():
                waiter.set_exception(self._error("was the last to wait"))

    def _error(self, what: str) -> DeadlockError:
        return DeadlockError(
            f"pool {self._name!r}: every slot is held by a task that waits for this pool, and this "
            f"one {what}; give the pool more slots, or submit nested work to another pool"
        )
