"""The workers of a pool: each is one asyncio task that runs closures one after the other.

Starting an asyncio task for every closure would cost more than everything else in a pool. So a
worker drives the closures' coroutines itself: it steps each one inside the contextvars context of
its submit, and passes the futures that it waits for to the loop. The closure sees no difference:
`asyncio.current_task()` is the worker's task, so timeouts, task groups and cancellation work as
usual.

A worker that was cancelled while it ran a closure is not used again. asyncio still counts that
cancel, or has not delivered it yet; this ends with the worker and cannot reach the next closure.
A worker without a task waits for two turns of the loop, so that a caller that was just woken can
submit again, and then ends: an idle pool has no asyncio tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections.abc import Callable, Generator
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from harn.context import current_frame_var
from harn.pools.closure_frame import ClosureFrame
from harn.teardown import unwind

if TYPE_CHECKING:
    from harn.pools.slots import Slots
    from harn.pools.task import PoolTask

_ASYNC = inspect.CO_COROUTINE


class Worker:
    """The worker of one slot, which ends when the pool has no task for it."""

    __slots__ = (
        "_slots",
        "aio",
        "begun",
        "context",
        "error",
        "frame",
        "interrupted",
        "result",
        "task",
    )

    def __init__(self, slots: Slots, task: PoolTask | None = None) -> None:
        self._slots = slots
        self.task: PoolTask | None = None
        """The task that this worker holds a slot for."""
        self.context: Any = None
        """The contextvars of its submit."""
        self.begun: PoolTask | None = None
        """The same task, once it has begun: from then on a cancel of *aio* is a cancel of it."""
        self.frame: ClosureFrame | None = None
        """The frame of the running closure."""
        self.interrupted: PoolTask | None = None
        """The task into whose closure an exception was last thrown, such as a cancel."""
        self.result: Any = None
        self.error: BaseException | None = None
        """The error of the last closure; *result* is its value if there is none."""
        if task is not None:
            self.take(task)
        # Not `loop.create_task`: an eager task factory would run it before it is `aio`.
        self.aio: asyncio.Task[None] = asyncio.Task(
            self._live(), loop=slots.runtime.loop, context=slots.worker_context
        )
        self.aio.add_done_callback(self._ended)

    def take(self, task: PoolTask) -> None:
        """Hold a slot for *task*; it begins on the next turn of the loop."""
        self.task = task
        self.context = task._place
        task._place = self

    def is_running(self, task: PoolTask) -> bool:
        """Tell whether the closure of *task* has begun."""
        return self.begun is task and self.frame is not None

    def stop(self) -> None:
        """Cancel the closure that runs, or the preparations for it."""
        if self.frame is not None and self.frame._task is not None:
            self.frame._task.cancel_requested = True
        self.aio.cancel()

    async def _live(self) -> None:
        await self._serve()

    def _ended(self, aio: asyncio.Task[None]) -> None:
        """Leave the pool; a task that was not begun goes to another worker."""
        if self.task is not None:
            self.task._place = self.context
        self._slots.worker_ended(self, self.task, None if aio.cancelled() else aio.exception())

    @types.coroutine
    def _serve(self) -> Generator[Any, None, None]:
        """Run tasks until there are none, or until this worker was cancelled."""
        slots, aio, streak = self._slots, self.aio, 0
        is_durable, default, longest = slots.is_durable, slots.runtime.frame, slots.streak
        closures = self._closures()
        step = closures.__next__
        step()
        while (task := self.task or (yield from self._linger())) is not None:
            self.begun = task
            if (is_durable or task._stopping) and not (yield from self._may_begin(task)):
                self._release_slot()
            else:
                context = self.context
                frame = self.frame = ClosureFrame(
                    task, context.get(current_frame_var, default), self
                )
                awaited = context.run(step)
                if awaited is not _ENDED and slots.unbegun:
                    slots.call_workers()  # this closure keeps the worker
                while awaited is not _ENDED:
                    try:
                        yield awaited
                    except GeneratorExit:
                        closures.close()
                        raise
                    except BaseException as thrown:
                        self.interrupted = task
                        awaited = context.run(closures.throw, thrown)
                    else:
                        awaited = context.run(step)
                self.frame = None
                if frame._task is not None:
                    frame.end()
                if self.error is None and not aio.cancelling():
                    slots.complete(self, task, self.result)
                    streak += 1
                    if streak >= longest:
                        streak = 0
                        self.begun = None
                        yield
                    continue
                self._ended_badly(task)
            if aio.cancelling():
                return

    @types.coroutine
    def _closures(self) -> Generator[Any, None, None]:
        """Run one closure after the other; `_serve` steps this inside the closure's context.

        One generator runs all of them. With a coroutine for each, every end would raise
        `StopIteration`, which costs more than everything else here.
        """
        slots, on_loop = self._slots, self._slots.on_loop
        while True:
            yield _ENDED
            frame: Any = self.frame
            fn: Any = self.begun._body  # type: ignore[union-attr]
            current_frame_var.set(frame)
            self.result = self.error = None
            try:
                made = fn.func if type(fn) is partial else fn
                if on_loop and type(made) is FunctionType and made.__code__.co_flags & _ASYNC:
                    self.result = yield from fn()
                else:
                    self.result = yield from _bound(slots, fn)
            except GeneratorExit:
                raise
            except BaseException as raised:
                self.error = raised
            if frame.cleanups:
                self.error = yield from unwind(frame, self.error)

    def _may_begin(self, task: PoolTask) -> Generator[Any, None, bool]:
        """Record the start of *task* if the pool is durable; false if it must not begin."""
        if self._slots.is_durable:
            yield from self._slots.before_start(task).__await__()
        if task._stopping and task._finished_ms is None:
            self._slots.finish(task, "cancelled")
            return False
        return task._finished_ms is None

    def _ended_badly(self, task: PoolTask) -> None:
        """End *task*, whose closure has failed, or whose worker was cancelled."""
        result, error = self.result, self.error
        self.result = self.error = None
        if error is None and task._stopping and self.interrupted is task:
            # The closure suppressed the cancel; its value is dropped.
            self._slots.finish(task, "cancelled")
        elif error is None:
            self._slots.finish(task, "completed", result)
        else:
            _finish_with(self._slots, task, error)
        self._release_slot()

    def _release_slot(self) -> None:
        """Give the slot to the next task, on this worker unless it was cancelled."""
        slots = self._slots
        self.task = self.begun = None
        if self.aio.cancelling():
            slots.fill_slot()
            return
        slots.idle.append(self)
        slots.fill_slot()
        if self.task is None:
            slots.idle.remove(self)

    def _linger(self) -> Generator[Any, None, PoolTask | None]:
        """Wait a little for the next task."""
        self.begun = None
        if self._slots.unbegun:
            self._slots.give_next(self)
            return self.task
        idle = self._slots.idle
        idle.append(self)
        try:
            for _ in range(self._slots.linger):
                yield
                if self.task is not None:
                    return self.task
        finally:
            if self in idle:
                idle.remove(self)
        return None


_ENDED = object()
"""What `_closures` yields when a closure has ended."""


async def _bound(slots: Slots, fn: Callable[[], Any]) -> Any:
    return await slots.bind(fn)()


def _finish_with(slots: Slots, task: PoolTask, error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        slots.finish(task, "cancelled")
        return
    # Without our own frames the traceback begins in the closure, and keeps no worker alive.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    slots.finish(task, "failed", error)
