"""The queue for a number of permits: first come, first served.

Mutex, semaphore, gate and read-write lock are all such a queue with another capacity: a mutex has
one permit, and a writer takes all of them. The first waiter waits until there are as many permits
as it wants, and no other waiter overtakes it. So a waiting writer blocks the readers behind it.

A permit queue belongs to its loop's thread: no other thread touches the waiters, the permits or the
counters, so they need no lock. What another thread releases is put into `released_by_threads`,
under `guard`; the loop's thread takes it from there in its next iteration, or at the next acquire.

Shortcuts for a queue of one permit exist because a benchmark needs them: `pass_on` here, and the
free case in `sync_mutex_acquire`, `Permit.release` and `Mutex` (docs/design/permits.md). The tests
of permits run with them and without them.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, InvalidStateError, Task as AsyncioTask
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

from harn.context import Task
from harn.errors import AcquireTimeout, MutexReentered
from harn.graceful_stop import park
from harn.runtime import Runtime
from harn.sync.wait_queue import GRANTED, WAITING, Waiter, WaitQueue, guard

Holder = AsyncioTask[Any] | None
"""The asyncio task that holds a permit. A child task has the same context, but is another
holder."""


class PermitWaiter(Waiter):
    """A caller that waits for permits, or holds them."""

    verb = "permit"
    on: PermitQueue
    since: float = 0.0
    """When the permits were requested; once granted, since when they are held."""

    @property
    def thread(self) -> int:  # type: ignore[override]
        """The thread of the loop that it waits on."""
        return self.on.thread

    async def wait_in_queue(self, task: Task, seconds: float | None = None) -> bool:
        """Join the queue and wait, on behalf of *task*; true when it was granted.

        False after *seconds*, and nothing is held then. Raises `MutexReentered` if it would wait,
        without a limit, for permits of its own holder. Cancelling and a graceful stop leave the
        queue; a grant goes to the next waiter.
        """
        queue, holder, timer = self.on, self.holder, None
        if seconds is not None:
            if not seconds:
                queue.timeouts += 1
                return False
            self.timed = True
            timer = task.runtime.clock.call_at(self.since + seconds, self.expire)
        elif queue.holder is holder or holder in queue.holders:
            queue.refuse_the_impossible(self)
        future: Future[None] = Future(loop=queue.loop)
        self.future = future
        queue.waiters.append(self)
        queue.queued = queued = queue.queued + 1
        if queued > queue.longest_queue:
            queue.longest_queue = queued
        if queue.free:
            # Creating the future may run the garbage collector, and a finaliser may have released
            # a permit before this waiter was in the queue.
            queue.serve(queue.monotonic())
        if task.aio is holder and timer is None:
            task.waiting = self
        places = park(task, future)
        try:
            await future
        except BaseException:
            queue.wait_seconds += queue.monotonic() - self.since
            queue.cancellations += 1
            queue.leave(self)
            raise
        finally:
            del places[future]
            if task.waiting is self:
                task.waiting = None
            if timer is not None:
                timer.cancel()
        if self.state == GRANTED:
            return True
        queue.wait_seconds += queue.monotonic() - self.since
        queue.timeouts += 1
        queue.leave(self)
        return False


class PermitQueue:
    """The permits under one key, their holders, the waiters, and the counters of both."""

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
        "longest_queue",
        "loop",
        "monotonic",
        "out",
        "queued",
        "released_by_threads",
        "thread",
        "timeouts",
        "wait_seconds",
        "waiters",
    )

    def __init__(self, kind: str, key: object, capacity: int, runtime: Runtime) -> None:
        self.loop: AbstractEventLoop = runtime.loop
        self.done: Future[None] = self.loop.create_future()  # cheaper to await than a coroutine
        self.done.set_result(None)
        self.monotonic: Callable[[], float] = runtime.clock.monotonic
        self.thread: int = get_ident()
        self.kind: str = kind
        self.key: object = key
        self.capacity: int = capacity
        self.free: int = capacity
        # The first holder is not in the dict: it is often the only one, and a dict costs more.
        self.holder: Holder = None
        self.held: int = 1
        self.holders: dict[Holder, int] = {}
        self.out: int = 0  # grants that were not released
        self.released_by_threads: deque[tuple[PermitWaiter, float]] = deque()
        self.waiters: WaitQueue[PermitWaiter] = WaitQueue()
        self.queued: int = 0
        self.longest_queue: int = 0
        self.acquisitions: int = 0
        self.timeouts: int = 0
        self.cancellations: int = 0
        self.wait_seconds: float = 0.0
        self.held_seconds: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no permit is held and no caller waits."""
        return self.free == self.capacity and not self.queued

    def enter(self, waiter: PermitWaiter) -> bool:
        """Grant what *waiter* wants if no waiter is ahead; false if it was not granted."""
        if self.released_by_threads:
            self.take_back_from_threads()
        if self.free >= waiter.want and (not self.queued or self.waiters.first() is None):
            self._grant(waiter)
            waiter.state = GRANTED
            return True
        return False

    def _grant(self, waiter: PermitWaiter) -> None:
        want = waiter.want
        self.free -= want
        self.out += 1
        self.acquisitions += 1
        if self.holder is None:
            self.holder = waiter.holder
            self.held = want
        else:
            self.holders[waiter.holder] = self.holders.get(waiter.holder, 0) + want

    def held_by(self, holder: Holder) -> int:
        """Return how many permits *holder* has."""
        first = self.held if holder is self.holder else 0
        return first + self.holders.get(holder, 0)

    def release(self, waiter: PermitWaiter, now: float) -> None:
        """Release what *waiter* was granted, and grant it to the next waiters."""
        self.free += waiter.want
        self.out -= 1
        self._take_from_holder(waiter)
        if self.waiters:
            self.serve(now)

    def _take_from_holder(self, waiter: PermitWaiter) -> None:
        want = waiter.want
        if self.holder is waiter.holder and self.held == want:
            self.holder = None
        elif left := self.holders.pop(waiter.holder, want) - want:
            self.holders[waiter.holder] = left

    def pass_on(self, now: float) -> None:
        """Release the only permit: does what `release` does if *capacity* is 1.

        Without *now* no times are counted.
        Measured: with `release` instead, passing on a contended permit takes about 10 % longer.
        """
        waiters = self.waiters
        while waiters:
            waiter = waiters.popleft()
            if not waiter.state:  # WAITING
                try:
                    waiter.future.set_result(None)
                except InvalidStateError:
                    continue  # cancelled; it leaves the queue when it resumes
                waiter.state = GRANTED
                self.queued -= 1
                self.acquisitions += 1
                self.holder = waiter.holder
                if now:
                    self.wait_seconds += now - waiter.since
                    waiter.since = now
                return
        self.free = 1
        self.out = 0
        self.holder = None

    def forget_holder(self, waiter: PermitWaiter) -> None:
        """Record no holder for *waiter*'s permits: its task may end before the release."""
        if waiter.state == GRANTED:
            self._take_from_holder(waiter)
            waiter.holder = None

    def serve(self, now: float) -> None:
        """Grant the first waiters what they want, while there are enough permits."""
        waiters = self.waiters
        while waiters:
            waiter = waiters[0]
            if waiter.state or waiter.future.done():
                waiters.popleft()  # it gave up, and leaves the queue when it resumes
                continue
            if waiter.want > self.free:
                return
            waiters.popleft()
            self.queued -= 1
            self._grant(waiter)
            self.wait_seconds += now - waiter.since
            waiter.since = now
            waiter.state = GRANTED
            try:
                waiter.future.set_result(None)
            except RuntimeError:
                pass  # the loop is closed, so no task waits
            if not self.free:
                return

    def leave(self, waiter: PermitWaiter) -> None:
        """Remove *waiter* from the queue; if it was granted, release its permits."""
        now = self.monotonic()
        if waiter.withdraw():
            self.acquisitions -= 1
            self.release(waiter, now)
        else:
            self.queued -= 1
            self.waiters.note_left()
            self.serve(now)  # it may have blocked smaller requests behind it

    def release_from_thread(self, waiter: PermitWaiter, held_for: float) -> None:
        """Release what *waiter* was granted, from another thread than the loop's."""
        with guard:
            self.released_by_threads.append((waiter, held_for))
            try:
                self.loop.call_soon_threadsafe(self.take_back_from_threads)
            except RuntimeError:
                pass  # the loop is closed, so no caller waits

    def take_back_from_threads(self) -> None:
        """Make permits that other threads released free, and grant them to waiters."""
        with guard:
            while self.released_by_threads:
                waiter, held_for = self.released_by_threads.popleft()
                self.held_seconds += held_for
                self.release(waiter, self.monotonic())

    def refuse_the_impossible(self, waiter: PermitWaiter) -> None:
        """Raise `MutexReentered` if *waiter* would wait for permits of its own holder."""
        want, held = waiter.want, self.held_by(waiter.holder)
        if not held:
            return
        left = self.capacity - held
        if want > left:
            raise MutexReentered(
                f"{self.kind} {self.key!r}: this task already holds {self._named(held)} and asks "
                f"for {self._named(want)}, so it would wait for itself; release first (it is not "
                "re-entrant), or give a timeout"
            )
        if any(
            each.want > left and not each.timed for each in self.waiters if each.state == WAITING
        ):
            raise MutexReentered(
                f"{self.kind} {self.key!r}: this task holds {self._named(held)}, which another "
                "task waits for, and would wait behind it; take all you need at once, or "
                "give a timeout"
            )

    def timed_out(self, seconds: float) -> AcquireTimeout:
        """Return the error of a caller that required permits and waited *seconds* in vain."""
        holder = self.holder.get_name() if self.holder is not None else None
        held = f"; {holder} holds it" if holder and self.capacity == 1 else ""
        waited = f"within {seconds:g} s" if seconds else "at once"
        what = f"{self.kind} {self.key!r} was not granted {waited}{held}"
        return AcquireTimeout(f"{what}; wait longer, or do without it")

    def _named(self, permits: int) -> str:
        if self.kind == "rwlock":
            return "the write lock" if permits == self.capacity else "a read lock"
        return "it" if self.capacity == 1 else f"{permits} of {self.capacity} permits"
