"""The handle of a task: await the task, cancel it, ask how it ended.

Each `await` of a `TaskHandle` waits on its own future, so that cancelling a waiter does not cancel
the task. The task's error goes to the waiters; if there are none, to the nursery that owns the
task. The error of a detached task is logged once, when its handle is garbage-collected or the
runtime ends. A task with done callbacks is *watched*: its owner waits until its scope ends for a
caller that reads the error.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, cast

from harn.clock import Clock, resolve
from harn.context import Task
from harn.current import current_frame
from harn.errors import DeadlockError, HarnError, TaskCancelled
from harn.graceful_stop import asked, is_stop, park, raise_if_asked
from harn.tasks.awaiting_tasks import AwaitingTasks
from harn.tasks.done_callbacks import DoneCallbacks
from harn.tasks.unseen_failures import UnseenFailures, log_failure

if TYPE_CHECKING:
    from harn.tasks.results import Err, Ok

T = TypeVar("T")
Status = Literal["running", "completed", "failed", "cancelled"]


class Nursery(Protocol):
    """The owner of tasks, which receives their errors: for example an open `scope`."""

    def adopt(self, handle: TaskHandle[Any]) -> None:
        """Become the owner of *handle* before it starts; raise if no more tasks are accepted."""

    def child_ended(self, handle: TaskHandle[Any], error: BaseException | None) -> None:
        """Forget *handle*, which has ended; *error* is its failure, if no waiter received it."""

    def child_failed(self, error: BaseException) -> None:
        """Receive the *error* of a child that has ended, after its last waiter was cancelled."""


class TaskHandle(Generic[T]):
    """A task that runs or has ended, made by `spawn`.

    `await handle` returns the task's value or raises its exception, `TaskCancelled` if it was
    cancelled. It may be awaited many times and by many tasks. Cancelling a waiter leaves the task
    running, with the same owner. `asyncio.wait`, `gather`, `wait_for` and `as_completed` take it.

    >>> import harn
    >>> async def main() -> int:
    ...     handle = harn.spawn(lambda: 6 * 7)
    ...     return await handle
    >>> harn.run(main)
    42
    """

    __slots__ = (
        "__weakref__",
        "_aio",
        "_callbacks",
        "_error",
        "_nursery",
        "_received",
        "_status",
        "_task",
        "_unseen",
        "_value",
        "_waiters",
    )

    # Not `__init__`, which Python calls through C: measured, that takes twice as long.
    def _begin(self, task: Task, nursery: Nursery | None) -> None:
        self._task = task
        self._nursery = nursery
        self._status: Status = "running"
        self._waiters: list[asyncio.Future[None]] | None = None
        self._callbacks: DoneCallbacks | None = None
        self._received = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._aio: asyncio.Task[T] | None = None
        self._unseen: weakref.finalize[Any, Any] | None = None

    @property
    def task_id(self) -> str:
        """The task's id, `<parent>:spawn:<n>`."""
        return self._task.id

    @property
    def status(self) -> Status:
        """`running`, `completed`, `failed` or `cancelled`."""
        return self._status

    def done(self) -> bool:
        """Tell whether the task has ended."""
        return self._status != "running"

    def cancelled(self) -> bool:
        """Tell whether the task has ended because it was cancelled."""
        return self._status == "cancelled"

    def result(self) -> T:
        """Return the value of a task that has ended, or raise what `await handle` would raise.

        `asyncio.InvalidStateError` if it still runs.
        """
        self._check_ended()
        return self._receive()

    def exception(self) -> BaseException | None:
        """Return the error of a task that has ended; None if it completed.

        Raises `TaskCancelled` if it was cancelled, `asyncio.InvalidStateError` if it still runs.
        The error counts as received: its scope does not raise it.
        """
        self._check_ended()
        if self._status != "failed":
            self.result()
        else:
            self._note_received()
        return self._error

    def _check_ended(self) -> None:
        if self._status == "running":
            raise asyncio.InvalidStateError(f"task {self._task.id} still runs; await it")

    def add_done_callback(
        self, fn: Callable[[TaskHandle[T]], object], /, *, context: Context | None = None
    ) -> None:
        """Call *fn* with this handle soon after the task has ended, as asyncio's futures do.

        If the task fails and nothing awaits it, its scope raises the error when it ends, unless
        `result()`, `exception()` or an await has received it by then.
        """
        loop = self._own_loop()
        if self._callbacks is None:
            self._callbacks = DoneCallbacks()
        self._callbacks.add(fn, context)
        if self._status != "running":
            self._callbacks.run(loop, self)

    def remove_done_callback(self, fn: Callable[[TaskHandle[T]], object], /) -> int:
        """Remove *fn* from the callbacks; return how often it was there."""
        return 0 if self._callbacks is None else self._callbacks.remove(fn)

    @property
    def _has_callbacks(self) -> bool:
        """Whether callbacks wait for the end of the task."""
        return bool(self._callbacks)

    @property
    def _unreceived(self) -> BaseException | None:
        """The error of the task, if it failed and no caller has received it."""
        return None if self._received else self._error

    def cancel(self) -> None:
        """Cancel the task: `is_cancelled()` becomes true in it and its await is interrupted.

        Returns at once; await the handle to wait for the end. Does nothing after the end. May be
        called from any thread.
        """
        if self._status == "running":
            self._task.cancel_requested = True
            runtime = self._task.runtime
            if runtime.on_loop_thread():
                self._interrupt()
            else:
                runtime.loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._aio is not None:
            self._aio.cancel()

    async def wait(self) -> T:
        """Wait for the task and return its value or raise its error, as `await handle` does.

        Cancelling leaves the task running.
        """
        return await self

    async def _join(self) -> None:
        """Wait until the task has ended, without its result: an error stays with its owner.

        Cancelling leaves the task running.
        """
        if self._aio is not None:
            await asyncio.wait((self._aio,))

    async def _join_within(self, seconds: float, clock: Clock) -> bool:
        """Wait for the task, at most *seconds* of *clock*; tell whether it has ended.

        An error counts as received: the caller must read `_outcome()`.
        """
        if self._status == "running":
            await _Waiting(self._until_ended((clock, seconds)))
        return self._status != "running"

    def _outcome(self) -> Ok[T] | Err[BaseException]:
        """Return the outcome of a task that has ended; `TaskCancelled` means it was cancelled."""
        from harn.tasks.results import Err, Ok  # their classes take a while to make

        try:
            return Ok(self._receive())
        except BaseException as error:
            return Err(error)

    def __await__(self) -> Generator[Any, None, T]:
        if self._status == "running":
            yield from self._until_ended()
        return self._receive()

    def _until_ended(self, limit: tuple[Clock, float] | None = None) -> Generator[Any, None, None]:
        me = current_frame().task
        if me is self._task:
            raise DeadlockError(f"task {me.id} awaits itself and would never end")
        if asked:
            raise_if_asked()
        loop = self._own_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters.append(waiter)
        timer, noted = None, False
        if limit is not None:
            clock, seconds = limit
            timer = clock.call_at(clock.monotonic() + seconds, partial(resolve, waiter))
        else:
            noted = AwaitingTasks((self._task,)).note_on(me)
        places = park(me, waiter)
        try:
            yield from waiter
        except BaseException:
            self._not_received(waiter)
            raise
        finally:
            del places[waiter]
            if timer is not None:
                timer.cancel()
            if noted:
                me.waiting = None
        if timer is not None and self._status == "running":
            self._waiters.remove(waiter)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop is not self._task.runtime._loop:
            raise HarnError(f"task {self._task.id} runs on another event loop; await it there")
        return loop

    def _not_received(self, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters
        if waiters is not None:
            waiters.remove(waiter)
        if self._error is None or self._received or waiters:
            return
        # The task failed, and this waiter should have received the error but was cancelled. Now
        # the owner receives it.
        if self._nursery is not None:
            self._nursery.child_failed(self._error)
        else:
            self._report_later(self._error)

    def _receive(self) -> T:
        if self._status == "completed":
            return cast(T, self._value)
        self._note_received()
        if self._error is not None:
            raise self._error
        raise TaskCancelled(f"task {self._task.id} was cancelled")

    def _note_received(self) -> None:
        self._received = True
        if self._unseen is not None:
            self._unseen.detach()
            self._unseen = None

    def _run_by(self, aio: asyncio.Task[T], context: Context | None = None) -> None:
        self._aio = self._task.aio = aio
        self._task.runtime.tasks.add(self._task)
        aio.add_done_callback(self._aio_ended, context=context)

    def _returned(self, value: T) -> None:
        """Note in the task's last step that it returned *value*, without a callback of the loop.

        Measured: the callback takes a fifth of the time that starting and joining a no-op takes.
        """
        aio = self._aio
        if aio is None or aio.cancelling():
            return  # only asyncio knows how it ends; `_aio_ended` is called
        aio.remove_done_callback(self._aio_ended)
        self._value = value
        self._end("completed", None)

    def _aio_ended(self, aio: asyncio.Task[T]) -> None:
        if aio.cancelled():
            self._end("cancelled", None)
        elif (error := aio.exception()) is None:
            self._value = aio.result()
            self._end("completed", None)
        elif is_stop(self._task, error):
            self._end("cancelled", None)
        else:
            self._error = error
            self._end("failed", error)

    def _end(self, status: Status, error: BaseException | None) -> None:
        task = self._task
        task.runtime.tasks.discard(task)
        task.aio = self._aio = None
        if asked:
            asked.discard(task)
        self._status = status
        awaited = False
        if self._waiters is not None:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
                    awaited = True
        if self._nursery is not None:
            self._nursery.child_ended(self, None if awaited else error)
        elif error is not None and not awaited:
            self._report_later(error)
        if self._callbacks:
            self._callbacks.run(task.runtime.loop, self)

    def _report_later(self, error: BaseException) -> None:
        # Awaiting the handle cancels the report. It is logged when the handle is collected or the
        # runtime ends.
        self._unseen = weakref.finalize(self, log_failure, self._task.id, self._task.name, error)
        self._unseen.atexit = False
        runtime = self._task.runtime
        if runtime.closing:
            self._unseen()
        else:
            runtime.service(UnseenFailures).add(self._unseen)

    def __repr__(self) -> str:
        return f"<TaskHandle {self._task.id} {self._task.name!r} {self._status}>"


class _Waiting:
    """Makes a generator of futures awaitable."""

    __slots__ = ("_steps",)

    def __init__(self, steps: Generator[Any, None, None]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, None, None]:
        return self._steps
