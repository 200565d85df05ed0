"""Workers that call one function with many items: the engine under every `parallel` form.

With a limit, that many workers pull from one iterator until it is empty. So a million items cost
no more each than ten, and no item is made before a worker is free. Without a limit, each item has
its own worker. Each item is a separate task for `runtime_context`, `defer`, permits and
`is_cancelled`, and has a copy of the context, although one asyncio task may run thousands of them:
`_in_context` runs each step of an item's coroutine inside the item's context.

The caller owns the workers. It returns, or raises, only when all of them have ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from typing import Any

from harn.context import Frame, Task, current_frame_var
from harn.current import current_frame
from harn.errors import InvalidOption, TaskCancelled
from harn.graceful_stop import asked, is_stop, park, raise_if_asked, request_stop
from harn.option_checks import whole_number
from harn.runtime import Runtime
from harn.tasks.awaiting_tasks import AwaitingTasks
from harn.tasks.isolation import Isolation, bind, limit_of
from harn.teardown import join_cancelled, note, unwind

Items = Iterable[Any] | AsyncIterable[Any]


class ParallelWorker:
    """One asyncio task of a run, and the task of the item that it works on."""

    __slots__ = ("aio", "cancelled", "task")

    def __init__(self) -> None:
        self.cancelled: bool = False
        self.aio: asyncio.Task[None] | None = None
        self.task: Task | None = None


class ParallelRun:
    """One `parallel` call and its workers. Subclasses decide what to do with values and errors."""

    def __init__(
        self,
        kind: str,
        items: Items,
        fn: Callable[..., Any],
        max_concurrent: int,
        isolation: Isolation,
    ) -> None:
        cap = check_cap(max_concurrent)
        self.frame: Frame = current_frame()
        self.parent: Task = self.frame.task
        self.runtime: Runtime = self.parent.runtime
        self._call = bind(self.runtime, fn, isolation)
        self._limit = _smaller(cap, limit_of(fn, isolation))
        self._items, self._feed = _source(items)
        self._turn: asyncio.Lock | None = None
        self.group_id: str = self.parent.child_id(kind)
        self._name = NAMES[kind]
        self._context = contextvars.copy_context()
        self._pulled = 0
        self.workers: set[ParallelWorker] = set()
        self.stopping: bool = False
        """Whether all workers are to be cancelled: an item failed, or the caller was cancelled."""
        self.ending: bool = False
        """Whether no further item begins, because the caller was asked to stop."""
        self.failures: list[tuple[int, BaseException]] = []
        self._chosen: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- overridden by subclasses --------------------------------------------------------------

    def succeeded(self, index: int, value: Any) -> Any:
        """Receive *value*; if this returns an awaitable, the worker awaits it first."""
        raise NotImplementedError

    def failed(self, index: int, error: BaseException) -> None:
        """Receive *error*; by default it stops the run."""
        self.failures.append((index, error))
        self.stop()

    # -- called by the caller ------------------------------------------------------------------

    async def work(self) -> None:
        """Run every item, or stop early; raise the failure that stopped the run.

        Cancelling cancels the workers, waits for them and raises the cancel.
        """
        if asked:
            raise_if_asked()
        me = self.parent
        noted = AwaitingTasks(RunningTasks(self)).note_on(me)
        place = self._pass_stop_on
        places = park(me, place)
        try:
            self.start()
            while self.workers and not self.stopping:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if asked:
                raise_if_asked()
        except asyncio.CancelledError as cancel:
            await self._end_workers_for(cancel)
            raise
        except BaseException:
            await self.end_workers()
            raise
        else:
            await self.end_workers()
        finally:
            del places[place]
            if noted:
                me.waiting = None
        if (error := self.failure()) is not None:
            raise error

    def _pass_stop_on(self) -> None:
        """Begin no further item and ask the running ones to stop; then `work` raises the stop."""
        self.ending = True
        for worker in list(self.workers):
            if worker.task is not None:
                request_stop(worker.task)

    def start(self) -> None:
        """Start a worker for each item, up to the limit."""
        if self._feed is not None:
            if self._limit is None:
                self._start_worker(self._feed_all())
            else:
                for _ in range(self._limit):
                    worker = ParallelWorker()
                    self._start_worker(self._pull_from_feed(worker), worker)
            return
        while (self._limit is None or len(self.workers) < self._limit) and not self.stopping:
            if (pulled := self._pull()) is None:
                return
            self._start_worker_for(*pulled)

    def stop(self) -> None:
        """Begin no further item, and let the caller end the workers."""
        self.stopping = True
        self.wake()

    async def end_workers(self) -> None:
        """Cancel the workers and wait for their end; raise a cancel that arrives meanwhile."""
        self.stopping = True
        self.choose()
        while left := [worker.aio for worker in self.workers if worker.aio is not None]:
            self.cancel_workers()
            await join_cancelled(left, self.runtime.clock)
            if all(aio.done() for aio in left):
                # Their done callbacks, which would remove them, have not run yet.
                self.workers = {each for each in self.workers if each.aio not in left}

    async def _end_workers_for(self, cancel: asyncio.CancelledError) -> None:
        try:
            await self.end_workers()
        finally:
            note(cancel, (error for _, error in self.failures))

    def cancel_workers(self) -> None:
        """Cancel every worker once: a second cancel would interrupt its cleanup."""
        for worker in list(self.workers):
            if worker.aio is not None and not worker.cancelled:
                worker.cancelled = True
                if worker.task is not None:
                    worker.task.cancel_requested = True
                worker.aio.cancel()

    def choose(self) -> None:
        """Choose the failure to raise: of those so far, the one with the lowest index."""
        if self._chosen is None and self.failures:
            self._chosen = min(self.failures, key=lambda failure: failure[0])[1]

    def failure(self) -> BaseException | None:
        """Return the failure to raise, with the other failures as notes on it."""
        self.choose()
        if self._chosen is not None:
            note(self._chosen, (error for _, error in self.failures))
            self.failures = []
        return self._chosen

    def wake(self) -> None:
        """Let the caller check the workers again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- workers -------------------------------------------------------------------------------

    def _start_worker(
        self, work: Coroutine[Any, Any, None], worker: ParallelWorker | None = None
    ) -> None:
        worker = worker or ParallelWorker()
        # Not `loop.create_task`: an eager task factory would run it before it is known here.
        loop = asyncio.get_running_loop()
        worker.aio = aio = asyncio.Task(work, loop=loop, name=self.group_id)
        self.workers.add(worker)
        aio.add_done_callback(lambda aio: self._worker_ended(worker, aio))

    def _start_worker_for(self, index: int, item: Any) -> None:
        worker = ParallelWorker()
        if self._limit is None:
            self._start_worker(self._do(worker, index, item), worker)
        else:
            self._start_worker(self._pull_and_do(worker, index, item), worker)

    def _worker_ended(self, worker: ParallelWorker, aio: asyncio.Task[None]) -> None:
        self.workers.discard(worker)
        if not aio.cancelled() and (error := aio.exception()) is not None:
            self.failures.append((self._pulled, error))  # an exit, or an error of the iterator
            self.stop()
        if not self.workers:
            self.wake()

    async def _pull_and_do(self, worker: ParallelWorker, index: int, item: Any) -> None:
        while True:
            await _in_context(self._context.copy(), self._do(worker, index, item))
            if self.stopping or self.ending or (pulled := self._pull()) is None:
                return
            index, item = pulled

    async def _do(self, worker: ParallelWorker, index: int, item: Any) -> None:
        group_id = self.group_id
        task = worker.task = self.parent.item(f"{group_id}:{index}", self._name, group_id)
        task.aio = worker.aio
        frame = Frame(task, self.frame.nursery)
        current_frame_var.set(frame)
        self.runtime.tasks.add(task)
        value, error = None, None
        try:
            value = await self._call(item)
        except BaseException as raised:
            error = raised
        try:
            if frame.cleanups:
                error = await unwind(frame, error)
            if error is not None:
                self._take_error(worker, index, error)
            elif (taken := self.succeeded(index, value)) is not None:
                await taken
        finally:
            self.runtime.tasks.discard(task)
            asked.discard(task)
            worker.task = error = None

    def _take_error(self, worker: ParallelWorker, index: int, error: BaseException) -> None:
        """Pass *error* to `failed`, or raise it if it is the worker's own cancel or an exit."""
        assert worker.aio is not None
        assert worker.task is not None
        if is_stop(worker.task, error):
            return
        told_to_end = self.stopping or worker.aio.cancelling()
        if isinstance(error, asyncio.CancelledError) and not told_to_end:
            error = TaskCancelled(f"task {self.group_id}:{index} was cancelled")
        if not isinstance(error, Exception):
            raise error
        self.failed(index, error)

    def _pull(self) -> tuple[int, Any] | None:
        assert self._items is not None
        for item in self._items:
            index = self._pulled
            self._pulled += 1
            return index, item
        return None

    async def _pull_from_feed(self, worker: ParallelWorker) -> None:
        assert self._feed is not None
        if self._turn is None:
            self._turn = asyncio.Lock()
        while not (self.stopping or self.ending):
            async with self._turn:
                try:
                    item = await anext(self._feed)
                except StopAsyncIteration:
                    return
                index = self._pulled
                self._pulled += 1
            await _in_context(self._context.copy(), self._do(worker, index, item))

    async def _feed_all(self) -> None:
        assert self._feed is not None
        async for item in self._feed:
            if self.stopping or self.ending:
                return
            self._start_worker_for(self._pulled, item)
            self._pulled += 1
            await self.has_room()

    async def has_room(self) -> None:
        """Wait until one more item may begin; only used without a limit."""


NAMES = {
    "parallel": "parallel",
    "parallel_each": "parallel each",
    "parallel_settle": "parallel settle",
    "parallel_race": "parallel race",
    "parallel_each_stream": "parallel each as stream",
}


class RunningTasks:
    """A live view of the tasks that a run's workers work on."""

    def __init__(self, run: ParallelRun) -> None:
        self._run = run

    def __iter__(self) -> Iterator[Task]:
        return iter([worker.task for worker in self._run.workers if worker.task is not None])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, task: object) -> bool:
        return any(each is task for each in self)


@types.coroutine
def _in_context(
    context: contextvars.Context, coro: Coroutine[Any, Any, Any]
) -> Generator[Any, Any, Any]:
    """Await *coro*, each of its steps inside *context*."""
    run, send = context.run, coro.send
    try:
        awaited = run(send, None)
        while True:
            try:
                yield awaited
            except BaseException as error:
                awaited = run(coro.throw, error)
            else:
                awaited = run(send, None)
    except StopIteration as end:
        return end.value


def _source(items: Items) -> tuple[Iterator[Any] | None, AsyncIterator[Any] | None]:
    if isinstance(items, AsyncIterable):
        return None, aiter(items)
    try:
        return iter(items), None
    except TypeError:
        raise InvalidOption("items", items, "a list or anything else to iterate over") from None


def check_cap(value: int) -> int | None:
    """Return *value* as a limit; zero or less means None, no limit."""
    whole_number("max_concurrent", value, wanted="a whole number; 0 or less means no limit")
    return value if value > 0 else None


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
