"""The queue for a number of permits: first come, first served.

Mutex, semaphore, gate and read-write lock are all this one thing with another capacity: a mutex
has one permit, a writer takes all of them. The first waiter waits for as many as it wants, and no
other overtakes it, so a waiting writer holds back the readers behind it.

A permit queue belongs to its loop's thread: no other thread touches the waiters, the permits or the
counters, so they need no lock. What another thread releases lands in `returned`, under `guard`; the
loop's thread puts it back as soon as it runs, or when a caller asks before that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from threading import get_ident
from typing import Any

from harn.errors import MutexReentered
from harn.runtime import Runtime
from harn.sync.wait_queue import GRANTED, WAITING, Waiter, WaitQueue, guard

Holder = asyncio.Task[Any] | None
"""Who holds a permit: an asyncio task. A child has our context, but it is another task."""


class PermitWaiter(Waiter):
    """A caller that waits for permits, or holds them."""

    verb = "permit"
    on: PermitQueue
    since = 0.0
    """When it was asked for; once granted, since when it is held."""

    @property
    def thread(self) -> int:  # type: ignore[override]
        """The thread of the loop that it waits on."""
        return self.on.thread


class PermitQueue:
    """The permits under one key, who holds them, who waits, and the counters of both."""

    __slots__ = (
        "acquisitions",
        "cancellations",
        "capacity",
        "done",
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
        "out",
        "queued",
        "returned",
        "thread",
        "timeouts",
        "wait_seconds",
    )

    def __init__(self, kind: str, key: object, capacity: int, runtime: Runtime) -> None:
        self.loop = runtime.loop
        self.done: asyncio.Future[None] = self.loop.create_future()  # cheaper than a coroutine
        self.done.set_result(None)
        self.monotonic = runtime.clock.monotonic
        self.thread = get_ident()
        self.kind = kind
        self.key = key
        self.capacity = capacity
        self.free = capacity
        self.holder: Holder = None  # the first of them, with no dict to pay for: often the only
        self.held = 1
        self.holders: dict[Holder, int] = {}
        self.out = 0  # grants that were not given back
        self.returned: deque[tuple[PermitWaiter, float]] = deque()
        self.line: WaitQueue[PermitWaiter] = WaitQueue()
        self.queued = 0
        self.longest_line = 0
        self.acquisitions = 0
        self.timeouts = 0
        self.cancellations = 0
        self.wait_seconds = 0.0
        self.held_seconds = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nobody holds or waits."""
        return self.free == self.capacity and not self.queued

    def enter(self, turn: PermitWaiter, may_wait: bool = True) -> bool:
        """Take what *turn* wants if that overtakes nobody, or else put it in line.

        False if it has to wait. `MutexReentered` if it would wait, without a timeout, for what
        its own holder has.
        """
        if self.returned:
            self.put_back_returned()
        if self.free >= turn.want and (not self.queued or self.line.first() is None):
            self._grant(turn)
            turn.state = GRANTED
            return True
        if may_wait:
            if not turn.timed and (self.holder is turn.holder or self.holders):
                self._refuse_the_impossible(turn.want, self.held_by(turn.holder))
            turn.future = asyncio.Future(loop=self.loop)
            self.line.append(turn)
            self.queued = queued = self.queued + 1
            if queued > self.longest_line:
                self.longest_line = queued
            if self.free:
                self.serve(self.monotonic())  # a finaliser may have given something back meanwhile
        return False

    def _grant(self, turn: PermitWaiter) -> None:
        want = turn.want
        self.free -= want
        self.out += 1
        self.acquisitions += 1
        if self.holder is None:
            self.holder = turn.holder
            self.held = want
        else:
            self.holders[turn.holder] = self.holders.get(turn.holder, 0) + want

    def held_by(self, holder: Holder) -> int:
        """Tell how many permits *holder* has."""
        first = self.held if holder is self.holder else 0
        return first + self.holders.get(holder, 0)

    def give_back(self, turn: PermitWaiter, now: float) -> None:
        """Put back what *turn* was granted, and serve the line."""
        want = turn.want
        self.free += want
        self.out -= 1
        if self.holder is turn.holder and self.held == want:
            self.holder = None
        elif left := self.holders.pop(turn.holder, want) - want:
            self.holders[turn.holder] = left
        if self.line:
            self.serve(now)

    def disown(self, turn: PermitWaiter) -> None:
        """Count what *turn* holds as nobody's: its task may end before it is given back."""
        if turn.state != GRANTED:
            return
        if self.holder is turn.holder and self.held == turn.want:
            self.holder = None
        elif left := self.holders.pop(turn.holder, turn.want) - turn.want:
            self.holders[turn.holder] = left
        turn.holder = None

    def serve(self, now: float) -> None:
        """Grant those at the front of the line what they can have."""
        line = self.line
        while (turn := line.first()) is not None and turn.want <= self.free:
            line.popleft()
            self.queued -= 1
            self._grant(turn)
            self.wait_seconds += now - turn.since
            turn.since = now
            turn.settle(GRANTED)
            if not self.free:
                return

    def leave(self, turn: PermitWaiter) -> None:
        """Give up *turn*'s place, and the grant if it had one, to those behind it."""
        now = self.monotonic()
        if turn.withdraw():
            self.acquisitions -= 1
            self.give_back(turn, now)
        else:
            self.queued -= 1
            self.line.note_left()
            self.serve(now)  # it may have held back those behind it

    def give_back_from_thread(self, turn: PermitWaiter, held_for: float) -> None:
        """Give back what *turn* was granted, from another thread than the loop's."""
        with guard:
            self.returned.append((turn, held_for))
            try:
                self.loop.call_soon_threadsafe(self.put_back_returned)
            except RuntimeError:
                pass  # the loop is closed, and so nobody is waiting

    def put_back_returned(self) -> None:
        """Put back what other threads gave back, and serve the line."""
        with guard:
            while self.returned:
                turn, held_for = self.returned.popleft()
                self.held_seconds += held_for
                self.give_back(turn, self.monotonic())

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
