"""Between the event loop and the threads that do a store's work.

A request goes to a thread with a future of the event loop and comes back answered, many at a
time. Every request is counted in the clock's activity until its answer is back, so a fake clock
waits for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from harn.clock import Activity, Clock
from harn.errors import StorageError
from harn.storage.contract import Durability, Hooks
from harn.storage.engines.loop_wakeup import LoopWakeup
from harn.storage.operations import Recipe, nothing

T = TypeVar("T")


class Request(msgspec.Struct, eq=False):
    """One operation on its way to a thread and back: what to do, then its result or error."""

    recipe: Recipe[Any]
    durability: Durability
    future: asyncio.Future[Any]
    activity: Activity
    result: Any = None
    error: BaseException | None = None
    touched: set[str] | None = None
    """Topics that grew."""

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits: a request cancelled before it began does not happen."""
        return not self.future.cancelled()


class Handover:
    """The loop's end of a store's threads."""

    def __init__(self, clock: Callable[[], Clock], hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._answered: deque[Sequence[Request]] = deque()
        self._wakeup: LoopWakeup | None = None

    def request(
        self,
        recipe: Recipe[T],
        durability: Durability,
        into: asyncio.Future[T] | None = None,
    ) -> Request:
        """Make a request; the caller passes it to a thread at once and awaits its future."""
        activity = self._clock().activity
        activity.store_began()
        if self._wakeup is None:
            self._wakeup = self._watched(activity)
        future = self._loop.create_future() if into is None else into
        return Request(recipe, durability, future, activity)

    def deliver(self, requests: Sequence[Request]) -> None:
        """Bring answered requests back; called in a thread."""
        # Before the answer: once the loop has the last one, it lets go of what wakes it.
        wakeup = self._wakeup
        self._answered.append(requests)
        if wakeup is not None:
            wakeup.wake()

    def close(self) -> None:
        """Close what wakes the loop, once every request is answered."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            if wakeup.fd is not None:
                self._clock().activity.idle_fds.discard(wakeup.fd)
            wakeup.close()

    def _watched(self, activity: Activity) -> LoopWakeup:
        wakeup = LoopWakeup(self._loop, self._answer_all)
        if wakeup.fd is not None:
            activity.idle_fds.add(wakeup.fd)
        return wakeup

    def hint(self) -> None:
        """Say that another process may have written; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._hooks.hinted)
        except RuntimeError:
            pass

    def grown(self, *topics: str) -> None:
        """Say that another process wrote to *topics*; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._hooks.appended, frozenset(topics))
        except RuntimeError:
            pass

    def _answer_all(self) -> None:
        while self._answered:
            touched: set[str] = set()
            for request in self._answered.popleft():
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


def start_thread(name: str, serve: Callable[..., None], *args: object) -> threading.Thread:
    """Start a thread for a store; `StorageError` if the program ends and Python starts no more.

    Python 3.12 is like that, from the moment in which the main thread has ended.
    """
    thread = threading.Thread(target=serve, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        raise StorageError("this program is ending, its store is not opened") from None
    return thread


class StoreThread:
    """A thread with an inbox; what has gathered there is carried out together.

    An engine says how (`carry_out`), what to do after a pause that it asked for (`idle`), and
    how to close what it holds (`let_go`).
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
        """Set the result or error of every request of *batch*; must not raise."""
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
            self._thread = start_thread(self._name, self._serve)
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
