"""The one wait queue, for everything that callers wait for in order.

A primitive keeps its state in plain attributes and changes it under `guard`. A caller that must
wait is in a `WaitQueue` as a `Waiter`. Three rules make that safe against cancels and threads:

1. **The state says who was granted, the future only wakes.** A grant is `waiter.state = GRANTED`,
   set under `guard` together with its cost (a slot, a value, permits). A cancel can therefore
   arrive at any moment, also between the grant and the resumption: a cancelled waiter that was
   granted passes the grant on (`withdraw` tells whether it was).
2. **First come, first served, among those still waiting.** Leaving the queue costs nothing: a
   waiter that gave up is skipped when it becomes the first, and such waiters are removed when they
   are the majority.
3. **One guard for the whole room.** The guarded regions are a few lines long, never await and never
   call user code, so the lock is held for about a microsecond. With one lock, a select can be in
   many queues at once, and worker threads can use the same primitives as the loop. It is re-entrant
   because a finaliser may run anywhere, also inside a guarded region. A permit queue, which only
   its loop's thread changes, needs no guard (see `permit_queue.py`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from threading import get_ident
from typing import Any, Self, TypeVar

from harn.clock import Clock, resolve
from harn.graceful_stop import parked

WAITING, GRANTED, CLOSED, TIMED_OUT, GONE = range(5)
"""The states of a waiter."""

SWEEP_AFTER = 64
"""Waiters that gave up, before a queue checks whether they are the majority."""

guard: threading.RLock = threading.RLock()
"""Held while the state of any primitive changes."""

# If another thread held the guard during a fork, the child process could never acquire it.
os.register_at_fork(
    before=guard.acquire, after_in_parent=guard.release, after_in_child=guard.release
)


class Waiter:
    """A place in a queue: what is wanted, its state, and the future that wakes its owner.

    *verb* and *on* say what it waits for; the message of a deadlock shows them.
    """

    # Without slots: an attribute that keeps its default costs nothing to make.
    state: int = WAITING
    want = 1
    holder: asyncio.Task[Any] | None = None
    open = 1
    """The number of queues that could still grant it; a select is in several."""
    order = 0
    timed = False

    future: asyncio.Future[None]
    thread: int
    verb: str
    on: Any

    def wait_as(self, verb: str, on: Any, loop: asyncio.AbstractEventLoop) -> Self:
        """Prepare to wait on *loop*, to *verb* (receive, send ...) *on* something."""
        self.future = loop.create_future()
        self.thread = get_ident()
        self.verb = verb
        self.on = on
        return self

    def wake(self, state: int) -> None:
        """Set the final *state* and wake the owner; call under `guard`."""
        self.state = state
        try:
            future = self.future
            if get_ident() != self.thread:
                future.get_loop().call_soon_threadsafe(resolve, future)
            elif not future.done():
                future.set_result(None)
        except RuntimeError:
            pass  # the loop is closed, so no task waits

    def expire(self) -> None:
        """End the wait because of its timeout, unless it was granted before."""
        with guard:
            if self.state == WAITING:
                self.wake(TIMED_OUT)

    def withdraw(self) -> bool:
        """Leave the queue; true if it had been granted, so that the grant must be passed on.

        Call under `guard`.
        """
        granted = self.state == GRANTED
        self.state = GONE
        return granted


W = TypeVar("W", bound=Waiter)


class WaitQueue(deque[W]):
    """Waiters in the order of arrival; those that gave up stay in it until they are removed.

    All methods must be called under `guard`, or on the one thread that uses the queue.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        super().__init__()
        self._left = 0

    def first(self) -> W | None:
        """Return the first that still waits, or None; remove those before it that gave up."""
        while self:
            waiter = self[0]
            if not waiter.state and not waiter.future.done():  # WAITING
                return waiter
            self.popleft()
        return None

    def note_left(self) -> None:
        """Note that a waiter gave up; remove all such waiters when they are the majority."""
        self._left += 1
        if self._left > SWEEP_AFTER and self._left * 2 > len(self):
            living = [waiter for waiter in self if waiter.state == WAITING]
            self.clear()
            self.extend(living)
            self._left = 0


async def park(waiter: Waiter, timeout: float | None = None, clock: Clock | None = None) -> None:
    """Sleep until *waiter* is woken, or for *timeout* seconds of *clock*; its state says which.

    Cancelling and a graceful stop raise at once and do not change the waiter's state: the caller
    must withdraw it.
    """
    timer = None
    if timeout is not None and clock is not None:
        waiter.timed = True
        timer = clock.call_at(clock.monotonic() + timeout, waiter.expire)
    try:
        with parked(waiter.future):
            await waiter.future
    finally:
        if timer is not None:
            timer.cancel()
