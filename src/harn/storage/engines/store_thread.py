"""Between the loop and the threads that do a store's work.

A request goes to a thread with a future of the loop's and comes back settled, many at a time.
Every request is counted in the clock's activity from hand-over until its answer is back, so a
fake clock waits for it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from harn.clock import Activity, Clock
from harn.storage.contract import Durability, Hooks
from harn.storage.operations import Recipe, nothing

T = TypeVar("T")


class Request:
    """One operation on its way: what to do, then what came of it."""

    __slots__ = ("activity", "durability", "error", "future", "recipe", "result", "touched")

    def __init__(
        self,
        recipe: Recipe[Any],
        durability: Durability,
        future: asyncio.Future[Any],
        activity: Activity,
    ) -> None:
        self.recipe = recipe
        self.durability = durability
        self.future = future
        self.activity = activity
        self.result: Any = None
        self.error: BaseException | None = None
        self.touched: set[str] | None = None
        """Topics that grew."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits: one given up before it began does not happen."""
        return not self.future.cancelled()


class Handover:
    """The loop's end of a store's threads."""

    def __init__(self, clock: Callable[[], Clock], hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._settled: deque[Sequence[Request]] = deque()
        self._bell: int | None = None

    def request(
        self,
        recipe: Recipe[T],
        durability: Durability,
        into: asyncio.Future[T] | None = None,
    ) -> Request:
        """Make a request; the caller passes it to a thread at once and awaits its future."""
        activity = self._clock().activity
        activity.store_began()
        if self._bell is None:
            self._bell = self._hang_bell(activity)
        future = self._loop.create_future() if into is None else into
        return Request(recipe, durability, future, activity)

    def deliver(self, requests: Sequence[Request]) -> None:
        """Bring settled requests back; called in a thread."""
        self._settled.append(requests)
        if self._bell:
            os.eventfd_write(self._bell, 1)
            return
        try:
            self._loop.call_soon_threadsafe(self._settle_all)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            pass

    def close(self) -> None:
        """Let go of what wakes the loop, once no thread is left to deliver anything."""
        bell, self._bell = self._bell, None
        if bell:
            if not self._loop.is_closed():
                self._loop.remove_reader(bell)
            self._clock().activity.idle_fds.discard(bell)
            os.close(bell)

    def hint(self) -> None:
        """Say that somebody else may have written; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._hooks.hinted)
        except RuntimeError:
            pass

    def grown(self, topic: str) -> None:
        """Say that somebody else wrote to *topic*; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._hooks.appended, frozenset((topic,)))
        except RuntimeError:
            pass

    def _hang_bell(self, activity: Activity) -> int:
        """Return a descriptor that wakes the loop, or 0 where only the loop's own way works.

        That one (a socket pair, read until it is empty) costs three more system calls and an
        exception, about 15 microseconds for each answer.
        """
        if not hasattr(os, "eventfd"):
            return 0
        bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._loop.add_reader(bell, self._rung, bell)
        except NotImplementedError:
            os.close(bell)
            return 0
        activity.idle_fds.add(bell)
        return bell

    def _rung(self, bell: int) -> None:
        os.eventfd_read(bell)
        self._settle_all()

    def _settle_all(self) -> None:
        while self._settled:
            self._settle(self._settled.popleft())

    def _settle(self, requests: Sequence[Request]) -> None:
        touched: set[str] = set()
        for request in requests:
            if request.error is None and request.touched:
                touched |= request.touched
            future = request.future
            if not future.done():
                if request.error is not None:
                    future.set_exception(request.error)
                else:
                    future.set_result(request.result)
            request.activity.store_ended()
        if touched:
            self._hooks.appended(frozenset(touched))


class StoreThread:
    """A thread with an inbox; what has gathered there is carried out together.

    An engine says how (`carry_out`), what to do after a pause that it asked for (`idle`), and
    how to let go of what it holds.
    """

    group = 512
    """Requests carried out together, at most."""

    def __init__(self, name: str, handover: Handover) -> None:
        self._name = name
        self._handover = handover
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._farewell: Request | None = None

    def carry_out(self, batch: list[Request]) -> None:
        """Settle every request of *batch*; must not raise."""
        raise NotImplementedError

    def patience(self) -> float | None:
        """Return the seconds after which to call `idle`, or None for never."""
        return None

    def idle(self) -> None:
        """Do what had to wait."""

    def let_go(self) -> None:
        """Close what is open."""

    def put(self, request: Request) -> None:
        """Hand *request* over, starting the thread on first use."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._inbox.put(request)

    async def aclose(self) -> None:
        """Let the thread finish its inbox and end."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._farewell = self._handover.request(nothing, "full")
        self._inbox.put(None)
        await self._farewell.future
        thread.join()

    def _serve(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                self.carry_out(batch)
                self._handover.deliver(batch)
                batch = None  # answers may be large: do not hold them until the next one
        self.idle()
        self.let_go()
        assert self._farewell is not None
        self._handover.deliver([self._farewell])

    def _next_batch(self) -> list[Request] | None:
        try:
            first = self._inbox.get(timeout=self.patience())
        except queue.Empty:
            self.idle()
            return []
        if first is None:
            return None
        batch = [first]
        while len(batch) < self.group:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
            if item is None:
                self._inbox.put(None)
                break
            batch.append(item)
        return batch
