"""The workers of a pool: each one asyncio task that runs closure after closure.

Starting an asyncio task for every closure would cost more than all the rest of a pool, so a
worker drives the closures' coroutines itself: it steps each one inside the contextvars context
that was captured at its submit, and passes the futures it waits for up to the loop. For the
closure nothing is different. `asyncio.current_task()` is the worker's task, so timeouts, task
groups and cancellation work as they do anywhere.

A worker that was cancelled while it ran a closure is not used again: whatever asyncio still
remembers of that cancel (a count, a cancel not yet delivered) ends with it and can never hit the
next closure. A worker without work stays for two turns of the loop, long enough for whoever was
just woken to submit again, and then ends; an idle pool has no tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from types import FunctionType
from typing import TYPE_CHECKING, Any

from harn.pools.task import ClosureTask, PoolTask
from harn.runtime import Frame, current_frame_var
from harn.unwinding import unwind

if TYPE_CHECKING:
    from harn.pools.pool import Pool

LINGER = 2
"""Turns of the loop that a worker without work waits for more."""
STREAK = 64
"""Closures that a worker runs without a pause before it lets the loop turn."""

_ASYNC = inspect.CO_COROUTINE


class Worker:
    """One slot's worker, for as long as there is work."""

    __slots__ = ("aio", "begun", "pool", "task")

    def __init__(self, pool: Pool, task: PoolTask) -> None:
        self.pool = pool
        self.task: PoolTask | None = task
        """The task that holds our slot."""
        self.begun: PoolTask | None = None
        """The same, once we work on it: a cancel of our asyncio task is a cancel of it."""
        task._worker = self
        self.aio: asyncio.Task[None] = pool.runtime.loop.create_task(
            self._live(), context=pool._context
        )
        self.aio.add_done_callback(self._gone)

    async def _live(self) -> None:
        await self._serve()

    def _gone(self, aio: asyncio.Task[None]) -> None:
        """Leave the pool; a task that we never began goes to another worker."""
        self.pool._workers.discard(self)
        if self.task is not None:
            self.pool._worker_died(self.task, None if aio.cancelled() else aio.exception())

    @types.coroutine
    def _serve(self) -> Generator[Any, None, None]:
        """Run tasks until there are none, or until a cancel has touched this worker."""
        pool, aio, streak = self.pool, self.aio, 0
        while True:
            task = self.begun = self.task
            if task is None:
                if not (yield from self._linger()):
                    return
                continue
            if task._stopping:
                pool._finish(task, "cancelled", None, None)
            else:
                if pool._journal is not None:
                    yield from pool.before_start(task).__await__()
                if task._finished_ms is None:
                    yield from self._run(task)
            self.task = self.begun = None
            if aio.cancelling():
                pool._next()
                return
            pool._next(self)
            streak += 1
            if streak >= STREAK:
                streak = 0
                yield

    def _linger(self) -> Generator[Any, None, bool]:
        idle = self.pool._idle
        idle.append(self)
        try:
            for _ in range(LINGER):
                yield
                if self.task is not None:
                    return True
        finally:
            if self in idle:
                idle.remove(self)
        return False

    def _run(self, task: PoolTask) -> Generator[Any, None, None]:
        pool, context, fn = self.pool, task._context, task._fn
        assert context is not None
        assert fn is not None
        outer = context.get(current_frame_var) or pool.runtime.frame
        harn = task._harn = ClosureTask(task, outer.task, self.aio)
        frame = Frame(harn)
        context.run(current_frame_var.set, frame)
        pool.runtime.tasks.add(harn)
        result: Any = None
        error: BaseException | None = None
        try:
            if pool._on_loop and type(fn) is FunctionType and fn.__code__.co_flags & _ASYNC:
                coro = context.run(fn)
            else:
                coro = _called(context, pool.bind(fn))
            result = yield from _drive(context, coro)
        except GeneratorExit:
            raise
        except BaseException as raised:
            error = raised
        if frame.cleanups:
            error = yield from _drive(context, unwind(frame, error))
        pool.runtime.tasks.discard(harn)
        task._harn = None
        if error is None:
            pool._finish(task, "completed", result, None)
        elif isinstance(error, asyncio.CancelledError):
            pool._finish(task, "cancelled", None, None)
        else:
            pool._finish(task, "failed", None, _lightened(error))


def _called(context: contextvars.Context, call: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
    made = context.run(call)
    return made if inspect.iscoroutine(made) else _awaited(made)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _drive(
    context: contextvars.Context, coro: Coroutine[Any, Any, Any]
) -> Generator[Any, None, Any]:
    """Run *coro* to its end inside *context*, passing what it waits for up to the loop."""
    run, send = context.run, coro.send
    try:
        awaited = run(send, None)
        while True:
            try:
                yield awaited
            except GeneratorExit:
                coro.close()
                raise
            except BaseException as thrown:
                awaited = run(coro.throw, thrown)
            else:
                awaited = run(send, None)
    except StopIteration as stop:
        return stop.value


def _lightened(error: BaseException) -> BaseException:
    """Take our own frames off the traceback: it begins in the closure, and keeps no worker."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    return error
