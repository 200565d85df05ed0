"""`parallel_each_stream`: values as they complete, no faster than the caller takes them.

The buffer holds one value. A worker whose value does not fit waits and begins no further item.
Values and the first failure are returned in order of completion. The caller holds a
`ParallelStream`, the workers hold a `Streaming`: so the stream can be garbage-collected while
workers run, and that ends the work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast, overload

from harn.context import add_cleanup
from harn.current import current_frame
from harn.errors import HarnError
from harn.graceful_stop import parked
from harn.tasks.awaiting_tasks import AwaitingTasks
from harn.tasks.isolation import Isolation
from harn.tasks.parallel_engine import ParallelRun, ParallelWorker, RunningTasks

A = TypeVar("A")
T = TypeVar("T")


@overload
def parallel_each_stream(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Awaitable[T]],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> ParallelStream[T]: ...
@overload
def parallel_each_stream(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], T],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> ParallelStream[T]: ...
def parallel_each_stream(
    items: Iterable[A] | AsyncIterable[A],
    fn: Callable[[A], Any],
    max_concurrent: int = 0,
    *,
    isolation: Isolation = "auto",
) -> ParallelStream[Any]:
    """Run *fn* with each of *items* and return a stream of the values in order of completion.

    Iterate over it with `async for`; the work begins when the first value is requested. A failure
    is raised where the next value is requested, after the other tasks have been cancelled and
    awaited. The remaining work is cancelled when its `async with` block ends, by `aclose()`, at the
    end of the scope or task that made the stream, and when the stream is garbage-collected.
    *items* are read one by one as there is room.

    Cancelling a wait for the next value, or a graceful stop in it, loses no value.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     squares = harn.parallel_each_stream(range(3), lambda n: n * n, max_concurrent=1)
    ...     return [square async for square in squares]
    >>> harn.run(main)
    [0, 1, 4]
    """
    run = Streaming("parallel_each_stream", items, fn, max_concurrent, isolation)
    return ParallelStream(run)


class ParallelStream(Generic[T]):
    """An async iterator over finished values, and a context manager that ends remaining work.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     async with harn.parallel_each_stream([1, 2, 3], lambda n: n * n) as squares:
    ...         return sorted([square async for square in squares])
    >>> harn.run(main)
    [1, 4, 9]
    """

    def __init__(self, run: Streaming) -> None:
        self._run = run

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return cast(T, await self._run.take())

    async def aclose(self) -> None:
        """Cancel the remaining work and wait for its end. A second call does nothing.

        Cancelling still waits for that end, then raises the cancel.
        """
        await self._run.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._run.abandon()


class Streaming(ParallelRun):
    """Passes values to one reader, through a buffer for one value."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._state = "new"
        self._buffer: deque[Any] = deque()
        self._blocked: deque[tuple[asyncio.Future[None], Any]] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    async def take(self) -> Any:
        """Return the next finished value; `StopAsyncIteration` at the end.

        Cancelling loses no value.
        """
        if self._state == "new":
            self._begin()
        while not self._buffer:
            if self._state == "closed" or self.stopping or not self.workers:
                await self._end()
            if self._taker is not None:
                raise HarnError("this stream is being read already; one reader at a time")
            self._taker = asyncio.get_running_loop().create_future()
            me = current_frame().task
            noted = AwaitingTasks(RunningTasks(self)).note_on(me)
            try:
                with parked(self._taker):
                    await self._taker
            finally:
                self._taker = None
                if noted:
                    me.waiting = None
        value = self._buffer.popleft()
        if self._blocked:
            waiter, blocked = self._blocked.popleft()
            self._buffer.append(blocked)
            waiter.set_result(None)
        if not self._blocked and self._room is not None and not self._room.done():
            self._room.set_result(None)
        return value

    async def _end(self) -> None:
        """End the stream: raise its failure the first time, then `StopAsyncIteration`."""
        state = self._state
        await self.aclose()
        if state != "closed" and (error := self.failure()) is not None:
            raise error
        raise StopAsyncIteration

    def _begin(self) -> None:
        self._state = "open"
        add_cleanup(self.frame, self, self.aclose)
        if self._feed is None and self._limit is None:
            self._start_worker(self._start_all())
        else:
            self.start()

    async def _start_all(self) -> None:
        while not self.stopping and (pulled := self._pull()) is not None:
            self._start_worker_for(*pulled)
            await self.has_room()

    async def has_room(self) -> None:
        """Wait while a finished value does not fit; at least let other tasks run once."""
        await asyncio.sleep(0)
        while self._blocked:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def succeeded(self, index: int, value: Any) -> Awaitable[None] | None:
        """Put *value* into the buffer, or return an awaitable that waits for room."""
        if self.stopping:
            return None
        if not self._buffer and not self._blocked:
            self._buffer.append(value)
            self.wake()
            return None
        waiter = asyncio.get_running_loop().create_future()
        entry = (waiter, value)
        self._blocked.append(entry)
        return self._until_taken(entry)

    async def _until_taken(self, entry: tuple[asyncio.Future[None], Any]) -> None:
        try:
            await entry[0]
        except asyncio.CancelledError:
            if entry in self._blocked:
                self._blocked.remove(entry)
            raise

    def failed(self, index: int, error: BaseException) -> None:
        """Let the values that finished before pass, then end with *error*."""
        while self._blocked:
            waiter, value = self._blocked.popleft()
            self._buffer.append(value)
            waiter.set_result(None)
        super().failed(index, error)
        self.cancel_workers()

    def wake(self) -> None:
        """Let the reader check the buffer again."""
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    async def aclose(self) -> None:
        """Cancel the remaining work and wait for its end."""
        self._state = "closed"
        self._buffer.clear()
        try:
            if self.workers:
                await self.end_workers()
        finally:
            self.wake()
            self._remove_cleanup()

    def abandon(self) -> None:
        """End the work because no caller can request values any more. (On any thread.)"""
        if self._state == "open":
            loop = self.runtime.loop
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._abandoned)

    def _abandoned(self) -> None:
        self._state = "closed"
        self.stopping = True
        self.cancel_workers()

    def _worker_ended(self, worker: ParallelWorker, aio: asyncio.Task[None]) -> None:
        super()._worker_ended(worker, aio)
        if self._state == "closed" and not self.workers:
            self._remove_cleanup()

    def _remove_cleanup(self) -> None:
        if self.frame.cleanups is not None:
            self.frame.cleanups.pop(self, None)
