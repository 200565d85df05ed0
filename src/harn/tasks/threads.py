"""Worker threads: plain functions run here, so that they never block the loop.

The runtime has its own threads, up to a limit; asyncio's default executor is shared with the whole
process, and functions that never return could use up its threads. A thread cannot be stopped from
outside: cancelling its task sets `is_cancelled()`, interrupts what the function does through
`from_thread` or awaits in its own loop, and waits. A function that has not begun is withdrawn. The
wait ends early only when a signal stops the program (`harn.stopping`), after the shutdown timeout,
or when the runtime is being closed, after `ABANDON_AFTER` seconds. The thread is then abandoned,
not stopped, and the log says so.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import itertools
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from harn.clock import REAL_TIME, Timer
from harn.context import Task
from harn.current import current_frame
from harn.errors import HarnError
from harn.quiescence import OWN_THREADS
from harn.runtime import Runtime
from harn.stopping import stop_under_way
from harn.tasks.callables import is_async_callable
from harn.tasks.foreign_runtime import run_on_own_loop
from harn.teardown import REPORT_AFTER

logger: logging.Logger = logging.getLogger("harn.tasks")

ABANDON_AFTER = 5.0
"""Seconds that a closing runtime waits for a thread that was asked to stop."""


class Threads:
    """At most *limit* threads, started when needed."""

    def __init__(self, runtime: Runtime, limit: int, name: str = "worker") -> None:
        self.limit: int | None = limit
        self._runtime = runtime
        self._names = (f"{OWN_THREADS}{name}-{number}" for number in itertools.count(1))
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    def bind(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return an async function that runs *fn* on one of these threads.

        If *fn* is async, it gets its own event loop there.
        """
        return functools.partial(self.call, fn)

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run *fn* with *args* on a thread; return its value or raise its error.

        Cancelling withdraws a function that has not begun; otherwise it sets `is_cancelled()` in
        the function, interrupts an async one, waits for it to end, drops its value and raises
        the cancel.
        """
        call = ThreadCall(current_frame().task, fn, args)
        self._submit(call)
        call.count()
        try:
            await call.wait()
        finally:
            if not call.abandoned:
                self._unfinished -= 1
        return await call.result()

    def _submit(self, call: Callable[[], None]) -> None:
        # Counted only on the loop's thread, so no lock is needed.
        if self._closed:
            raise HarnError("these worker threads have been closed")
        assert self.limit is not None
        if self._unfinished >= len(self._threads) < self.limit:
            # A daemon, so that a function that never returns cannot keep the process alive.
            thread = threading.Thread(
                target=_work, args=(self._calls,), name=next(self._names), daemon=True
            )
            thread.start()  # raises if the system has no room for it; then nothing is counted
            self._threads.append(thread)
        self._unfinished += 1
        self._calls.put(call)

    async def aclose(self) -> None:
        """End every thread; idle ones have ended when this returns."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        if not self._unfinished:
            for thread in self._threads:
                thread.join(timeout=1.0)
        self._threads.clear()


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # an idle thread must not keep its last call alive


current_call: contextvars.ContextVar[ThreadCall] = contextvars.ContextVar("harn_thread_call")


class ThreadCall:
    """One call of a function on a thread; both the loop and the thread use it."""

    def __init__(self, task: Task, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.task = task
        self._runtime = task.runtime
        self._fn = fn
        self._args = args
        self._context = contextvars.copy_context()
        self._token = [True]
        self._waiter: asyncio.Future[None] | None = None
        self._cancel: asyncio.CancelledError | None = None
        self._timer: Timer | None = None
        self._value: Any = None
        self._error: BaseException | None = None
        self._ended = False
        self.abandoned: bool = False
        self.loop_tasks: set[asyncio.Task[Any]] = set()
        """The tasks on the loop that the thread started through `from_thread`."""
        self.stop_requested: bool = False
        """Whether the function was asked to stop; its task may continue after it."""
        self.must_cancel: bool = False
        """Whether the next `from_thread` must raise a cancel."""
        self._interrupt: Callable[[], None] | None = None
        """Cancels an async function in its own event loop on the thread."""
        self._activity = self._runtime.clock.activity
        self._busy = False

    def __call__(self) -> None:
        """Run the function, unless it was withdrawn. (On the thread.)"""
        if not self._take_token():
            return
        value, error = None, None
        self.task.thread = threading.current_thread().name
        try:
            value = self._context.run(self._call)
        except BaseException as raised:  # also SystemExit: it ends the task, never the thread
            error = raised
        try:
            self._runtime.loop.call_soon_threadsafe(self._arrived, value, error)
        except RuntimeError:
            logger.warning("%r ended on its thread after its event loop had closed", self.task)
        del value, error

    def _call(self) -> Any:
        current_call.set(self)
        if is_async_callable(self._fn):
            return run_on_own_loop(self.task, self._began_on_own_loop, self._fn, *self._args)
        return self._fn(*self._args)

    def _began_on_own_loop(self, interrupt: Callable[[], None]) -> None:
        # This side sets `_interrupt`, then reads `stop_requested`; the loop sets
        # `stop_requested`, then reads `_interrupt`. So at least one of them interrupts.
        self._interrupt = interrupt
        if self.stop_requested:
            interrupt()

    def _take_token(self) -> bool:
        # `pop` is atomic: either the thread begins the call or the loop withdraws it.
        try:
            return self._token.pop()
        except IndexError:
            return False

    async def wait(self) -> None:
        """Wait until the call has ended, was withdrawn, or is abandoned.

        Cancelling asks the call to stop, and waits on; `result` raises the cancel.
        """
        while not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as cancel:
                self._cancel = cancel
                self._request_stop()

    async def result(self) -> Any:
        """Return the value or raise the error; a cancel that came meanwhile is raised instead."""
        value, error, cancel = self._value, self._error, self._cancel
        self._value = self._error = None
        if cancel is not None:
            if inspect.iscoroutine(value):
                value.close()
            raise cancel
        if error is not None:
            raise _as_exception(error)
        return await value if inspect.isawaitable(value) else value

    def count(self) -> None:
        """Tell the clock whether the thread works; it does not while it waits for the loop."""
        busy = not self._ended and not self.loop_tasks
        if busy == self._busy:
            return
        self._busy = busy
        if busy:
            self._activity.call_began(self)
        else:
            self._activity.call_ended(self)

    def _request_stop(self) -> None:
        self.stop_requested = True
        if self._take_token():
            self._end()
            return
        if self._interrupt is not None:
            self._interrupt()
        self.must_cancel = not self.loop_tasks
        for task in list(self.loop_tasks):
            task.cancel()
        if self._timer is None:
            self._report_after(REPORT_AFTER)
        if (stop := stop_under_way()) is not None:
            stop.at_give_up(self._abandon)
        elif self._runtime.closing:
            when = REAL_TIME.monotonic() + ABANDON_AFTER
            REAL_TIME.call_at(when, self._abandon)

    def _report_after(self, patience: float) -> None:
        when = REAL_TIME.monotonic() + patience
        self._timer = REAL_TIME.call_at(when, functools.partial(self._report, patience))

    def _report(self, patience: float) -> None:
        where = self.task.thread
        logger.warning("%r still runs on %s %g s after its cancel", self.task, where, patience)
        self._report_after(patience * 2)

    def _abandon(self) -> None:
        if not self._ended:
            self.abandoned = True
            logger.warning("%r is abandoned: %s still runs it", self.task, self.task.thread)
            self._end()

    def _arrived(self, value: Any, error: BaseException | None) -> None:
        self.task.thread = None
        if not self._ended:
            self._value, self._error = value, error
            self._end()

    def _end(self) -> None:
        self._ended = True
        self.count()
        if self._timer is not None:
            self._timer.cancel()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _as_exception(error: BaseException) -> BaseException:
    """Return *error* as a task may raise it; an exit is wrapped, because it would end the loop."""
    if isinstance(error, Exception | asyncio.CancelledError):
        return error
    wrapped = HarnError(f"a function on a worker thread raised {type(error).__name__}({error})")
    wrapped.__cause__ = error
    return wrapped
