"""A turnstile: so many permits, given out first come, first served.

Mutex, semaphore, gate and read-write lock are all this one thing with another capacity: a mutex
has one permit, a writer takes all of them. Whoever stands first in line waits for as many as it
wants, and nobody overtakes it, so a waiting writer holds back the readers behind it.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import Any

from harn.errors import MutexReentered
from harn.runtime import Runtime
from harn.sync.waiters import GRANTED, WAITING, Waiter, WaitQueue, guard

Holder = asyncio.Task[Any] | None
"""Who holds a permit: an asyncio task. A child has our context, but it is another task."""


class Turn(Waiter):
    """A place in a turnstile's line."""

    verb = "permit"
    on: Turnstile

    @property
    def thread(self) -> int:  # type: ignore[override]
        """The thread of the loop that it waits on."""
        return self.on.thread


class Turnstile:
    """The permits under one key, who holds them, who waits, and the counters of both."""

    __slots__ = (
        "acquisitions",
        "cancellations",
        "capacity",
        "free",
        "held",
        "held_seconds",
        "holder",
        "holders",
        "key",
        "kind",
        "line",
        "longest_line",
        "loop",
        "monotonic",
        "queued",
        "releases",
        "thread",
        "timeouts",
        "wait_seconds",
    )

    def __init__(self, kind: str, key: object, capacity: int, runtime: Runtime) -> None:
        self.loop = runtime.loop
        self.monotonic = runtime.clock.monotonic
        self.thread = get_ident()
        self.kind = kind
        self.key = key
        self.capacity = capacity
        self.free = capacity
        self.holder: Holder = None  # the first of them, with no dict to pay for: often the only
        self.held = 0
        self.holders: dict[Holder, int] = {}
        self.line = WaitQueue()
        self.queued = 0
        self.longest_line = 0
        self.acquisitions = 0
        self.releases = 0
        self.timeouts = 0
        self.cancellations = 0
        self.wait_seconds = 0.0
        self.held_seconds = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds or waits."""
        return self.free == self.capacity and not self.queued

    def enter(self, waiter: Waiter, may_wait: bool = True) -> bool:
        """Take what *waiter* wants if that overtakes nobody, or else put it in line.

        False if it has to wait. `MutexReentered` if it would wait, without a timeout, for what
        its own holder has. Call under `guard`; written out in one piece because it is the hot one.
        """
        want = waiter.want
        if self.free >= want and (not self.queued or self.line.first() is None):
            self.free -= want
            self.acquisitions += 1
            if self.holder is None:
                self.holder = waiter.holder
                self.held = want
            else:
                self._note(waiter.holder, want)
            waiter.state = GRANTED
            return True
        if may_wait:
            if not waiter.timed and (self.holder is waiter.holder or self.holders):
                self._refuse_the_impossible(want, self.held_by(waiter.holder))
            waiter.future = self.loop.create_future()
            self.line.append(waiter)
            self.queued = queued = self.queued + 1
            if queued > self.longest_line:
                self.longest_line = queued
        return False

    def held_by(self, holder: Holder) -> int:
        """Tell how many permits *holder* has."""
        first = self.held if holder is self.holder else 0
        return first + self.holders.get(holder, 0)

    def _note(self, holder: Holder, want: int) -> None:
        self.holders[holder] = self.holders.get(holder, 0) + want

    def give_back(self, want: int, holder: Holder) -> None:
        """Put back what was taken, and serve the line; call under `guard`."""
        self.free += want
        if self.holder is holder and self.held == want:
            self.holder = None
        elif left := self.holders.pop(holder, want) - want:
            self.holders[holder] = left
        if self.line:
            self.serve()

    def hand_over(self) -> None:
        """Give the only permit straight to the first in line; call under `guard`.

        What `give_back` does where the capacity is 1, in one piece: the hot end of a hand-off.
        """
        line = self.line
        while line:
            waiter = line.popleft()
            future = waiter.future
            if not waiter.state and not future.done():  # WAITING
                self.queued -= 1
                self.acquisitions += 1
                self.holder = waiter.holder
                if get_ident() == self.thread:
                    waiter.state = GRANTED
                    future.set_result(None)
                else:
                    waiter.settle(GRANTED)
                return
        self.free = 1
        self.holder = None

    def serve(self) -> None:
        """Grant those at the front of the line what they can have; call under `guard`."""
        line = self.line
        while (waiter := line.first()) is not None and waiter.want <= self.free:
            line.popleft()
            self.queued -= 1
            self.free -= waiter.want
            self.acquisitions += 1
            if self.holder is None:
                self.holder = waiter.holder
                self.held = waiter.want
            else:
                self._note(waiter.holder, waiter.want)
            waiter.settle(GRANTED)
            if not self.free:
                return

    def leave(self, waiter: Waiter) -> None:
        """Give up *waiter*'s place, and the grant if it had one, to those behind it."""
        with guard:
            if waiter.withdraw():
                self.acquisitions -= 1
                self.give_back(waiter.want, waiter.holder)
            else:
                self.queued -= 1
                self.line.note_left()
                self.serve()  # it may have held back those behind it

    def _refuse_the_impossible(self, want: int, mine: int) -> None:
        if not mine:
            return
        left = self.capacity - mine
        if want > left:
            raise MutexReentered(
                f"{self.kind} {self.key!r}: this task already holds {self._named(mine)} and asks "
                f"for {self._named(want)}, so it would wait for itself; release first (it is not "
                "re-entrant), or give a timeout"
            )
        if any(each.want > left and not each.timed for each in self.line if each.state == WAITING):
            raise MutexReentered(
                f"{self.kind} {self.key!r}: this task holds {self._named(mine)}, which somebody "
                "in line waits for, and would stand behind them; take all you need at once, or "
                "give a timeout"
            )

    def _named(self, permits: int) -> str:
        if self.kind == "rwlock":
            return "the write lock" if permits == self.capacity else "a read lock"
        return "it" if self.capacity == 1 else f"{permits} of {self.capacity} permits"
