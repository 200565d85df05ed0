"""`spawn` starts a task; a `scope` is a block that does not end before the tasks started in it.

The scope is built on futures, because `asyncio.TaskGroup` cannot keep its guarantees (a nested
one swallows the parent's cancel on Python 3.11 and 3.12). The guarantees:

- Every task spawned in the block while it is open has ended when the block ends.
- The first failure in time cancels the siblings and interrupts the body. When all have ended, that
  failure is raised, with later failures as notes on it. A failure of a task that is awaited is
  raised at that await instead, and does not end the scope. If done callbacks watch the task, such
  as those of `asyncio.wait`, the body may still read the error, until the body ends.
- A cancel from outside cancels the tasks and is then raised as a cancel.

The body is interrupted with `Task.cancel`, and `uncancel` is called when the block ends. The count
that asyncio keeps of both shows whether another caller has cancelled the task too; then that cancel
is raised. The interrupt is always requested while the body's task is not running, so it is
delivered at the body's next step and never reaches code after the block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, KeysView
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, overload

from harn.clock import Timer
from harn.context import Frame, Task, current_frame_var, restore_frame
from harn.current import current_frame
from harn.errors import HarnError, InvalidOption
from harn.event_loop import running_loop
from harn.graceful_stop import asked, park, request_stop
from harn.tasks.awaiting_tasks import AwaitingTasks
from harn.tasks.cleanup import defer_in
from harn.tasks.handle import TaskHandle
from harn.tasks.isolation import Isolation, bind
from harn.tasks.task_start import launch
from harn.teardown import REPORT_AFTER, logger, note, unwind

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@overload
def spawn(
    fn: Callable[[*Ts], Awaitable[T]],
    /,
    *args: *Ts,
    name: str | None = None,
    isolation: Isolation = "auto",
) -> TaskHandle[T]: ...
@overload
def spawn(
    fn: Callable[[*Ts], T], /, *args: *Ts, name: str | None = None, isolation: Isolation = "auto"
) -> TaskHandle[T]: ...
def spawn(
    fn: Callable[[*Ts], Any],
    /,
    *args: *Ts,
    name: str | None = None,
    isolation: Isolation = "auto",
) -> TaskHandle[Any]:
    """Start *fn* with *args* as a new task and return its handle at once.

    Inside a `scope` the task belongs to the scope. Elsewhere it is detached: it runs until it or
    its runtime ends, and an error that is not awaited is logged. A cancel of its parent does not
    end a detached task, but `is_cancelled()` becomes true in it. *isolation* says where it runs:
    `"auto"` (an async function on the loop, a plain one on a worker thread), `"task"` (on the
    loop), `"thread"`, or `"process"` (arguments and result are copied). If a plain function
    returns an awaitable, it is awaited on the loop.

    >>> import harn
    >>> async def double(n: int) -> int:
    ...     return 2 * n
    >>> async def main() -> int:
    ...     return await harn.spawn(double, 21)
    >>> harn.run(main)
    42
    """
    frame = current_frame()
    return _start(frame.task, frame.nursery, fn, args, name, isolation)


def _start(
    parent: Task,
    nursery: Scope | None,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    name: str | None,
    isolation: Isolation,
) -> TaskHandle[Any]:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidOption("name", name, "a non-empty string, or None")
    call = bind(parent.runtime, fn, isolation)
    return launch(parent.child(name or "spawn"), call, args, nursery=nursery, ends_inside=True)


class Scope:
    """A block that joins what is spawned in it; made by `scope()`."""

    def __init__(self) -> None:
        self._children: dict[Task, TaskHandle[Any]] = {}
        self._errors: list[BaseException] = []
        self._watched: list[TaskHandle[Any]] = []
        """Tasks that failed while callbacks watched them."""
        self._state = "new"
        self._cancelling = False
        self._interrupted = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: Timer | None = None

    def __dir__(self) -> Iterable[str]:
        # The rest is for the tasks that the scope owns, and for the deadlock detector.
        public = ("cancel", "defer", "spawn")
        return [*public, *(name for name in super().__dir__() if name.startswith("_"))]

    @property
    def tasks(self) -> KeysView[Task]:
        """The tasks that still run, as a live view."""
        return self._children.keys()

    @overload
    def spawn(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        name: str | None = None,
        isolation: Isolation = "auto",
    ) -> TaskHandle[T]: ...
    @overload
    def spawn(
        self,
        fn: Callable[[*Ts], T],
        /,
        *args: *Ts,
        name: str | None = None,
        isolation: Isolation = "auto",
    ) -> TaskHandle[T]: ...
    def spawn(
        self,
        fn: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        name: str | None = None,
        isolation: Isolation = "auto",
    ) -> TaskHandle[Any]:
        """Start a task that belongs to this scope, also from outside its block."""
        return _start(current_frame().task, self, fn, args, name, isolation)

    def defer(self, fn: Callable[..., Any], *args: Any) -> None:
        """Call *fn* with *args* when this scope ends; see `harn.defer`."""
        if self._state != "open":
            raise HarnError("this scope is not open; defer inside its block")
        defer_in(self.frame, fn, args)

    def cancel(self) -> None:
        """Cancel every task of this scope, and the body unless the body itself calls this.

        The block then ends without an error, unless a task or a cleanup fails meanwhile.
        """
        if self._state in ("open", "joining"):
            self._cancel_children()
            if asyncio.current_task() is not self._host:
                self._interrupt_body()

    async def __aenter__(self) -> Self:
        if self._state != "new":
            raise HarnError("a scope can be entered once; make a new one")
        host = asyncio.current_task(running_loop())
        assert host is not None
        self._host = host
        self._cancels_before = host.cancelling()
        self.outer: Frame = current_frame()
        self.frame: Frame = Frame(self.outer.task, self)
        self._token = current_frame_var.set(self.frame)
        self._state = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._state = "joining"
        restore_frame(self._token, self.outer)
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._errors.append(error)
        if self._watched:
            self._take_unreceived()
        if error is not None or self._errors:
            self._cancel_children()
        cancel = await self._join() if self._children else None
        self._state = "ended"
        if self._timer is not None:
            self._timer.cancel()
        if cancel is None and self._cancelled_from_outside(error):
            cancel = error if isinstance(error, asyncio.CancelledError) else None
            cancel = cancel or asyncio.CancelledError()
        chosen = self._choose_error(cancel, error)
        if self.frame.cleanups:
            chosen = await unwind(self.frame, chosen)
        if chosen is None or chosen is error:
            return chosen is None  # if nothing is to be raised, *error* is our own interrupt
        context = chosen.__context__
        try:
            raise chosen
        finally:
            chosen.__context__ = context  # without this it would name our interrupt
            del chosen, error, cancel, context

    def _take_unreceived(self) -> None:
        """Add the errors of watched tasks that no caller has received."""
        found = [handle._unreceived for handle in self._watched]
        self._errors += [error for error in found if error is not None]
        self._watched = []

    def _cancelled_from_outside(self, error: BaseException | None) -> bool:
        """Undo our interrupt, and tell whether another caller cancelled the task too."""
        if not self._interrupted:
            return isinstance(error, asyncio.CancelledError)
        return self._host.uncancel() > self._cancels_before

    def _choose_error(
        self, cancel: asyncio.CancelledError | None, error: BaseException | None
    ) -> BaseException | None:
        """Choose what the block raises: a cancel from outside, else the first failure."""
        chosen = cancel or (self._errors[0] if self._errors else None)
        if chosen is not None:
            note(chosen, self._errors)
            if isinstance(error, asyncio.CancelledError):
                note(chosen, (error,))
        self._errors = []
        return chosen

    async def _join(self) -> asyncio.CancelledError | None:
        """Wait for every child, also when cancelled; return that cancel."""
        cancel: asyncio.CancelledError | None = None
        me = self.outer.task
        noted = AwaitingTasks(self.tasks).note_on(me)
        place = self._pass_stop_on
        places = park(me, place)
        if asked and me in asked:
            self._pass_stop_on()
        while self._children:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancel = error
                self._cancel_children(again=True)
        del places[place]
        if noted:
            me.waiting = None
        return cancel

    def _pass_stop_on(self) -> None:
        """Ask every child to stop; the body gets the stop in its next wait, if it has one."""
        for handle in list(self._children.values()):
            request_stop(handle._task)

    def adopt(self, handle: TaskHandle[Any]) -> None:
        """Become the owner of *handle* before it starts."""
        if self._state not in ("open", "joining"):
            raise HarnError("this scope has ended and accepts no more tasks")
        self._children[handle._task] = handle
        if self._cancelling:
            handle._task.runtime.loop.call_soon(handle.cancel)

    def child_ended(self, handle: TaskHandle[Any], error: BaseException | None) -> None:
        """Forget *handle*, which has ended; an *error* that no waiter received ends the scope."""
        self._children.pop(handle._task, None)
        if error is not None and handle._has_callbacks and self._state == "open":
            self._watched.append(handle)
        elif error is not None:
            self.child_failed(error)
        if not self._children:
            self._wake()

    def child_failed(self, error: BaseException) -> None:
        """Cancel the other tasks because of *error*, and interrupt the body."""
        if self._state == "ended":
            logger.error("a task failed after its scope had ended", exc_info=error)
            return
        self._errors.append(error)
        self._cancel_children()
        if asyncio.current_task() is self._host:
            self.outer.task.runtime.loop.call_soon(self._interrupt_body)
        else:
            self._interrupt_body()

    def _interrupt_body(self) -> None:
        if self._state == "open" and not self._interrupted:
            self._interrupted = True
            self._host.cancel()

    def _cancel_children(self, again: bool = False) -> None:
        if self._cancelling and not again:
            return  # a second cancel would interrupt their cleanup
        self._cancelling = True
        for handle in list(self._children.values()):
            handle.cancel()
        if self._children and self._timer is None:
            self._report_after(REPORT_AFTER)

    def _report_after(self, patience: float) -> None:
        clock = self.outer.task.runtime.clock
        wake = partial(self._report, patience)
        self._timer = clock.call_at(clock.monotonic() + patience, wake, background=True)

    def _report(self, patience: float) -> None:
        for handle in self._children.values():
            logger.warning("%r still runs %g s after its cancel", handle, patience)
        self._report_after(patience * 2)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def scope() -> Scope:
    """Open a block that ends only when every task spawned in it has ended.

    `async with scope() as s`: `spawn` inside the block, or `s.spawn` from anywhere, starts tasks
    that belong to the scope; the tasks that those spawn belong to it too. The first failure cancels
    the others, interrupts the block, and is raised from it; later failures are notes. An exception
    out of the block cancels the tasks; `return`, `break` and reaching the end wait for them.
    `defer`, `owned` and permits taken inside are cleaned up after the tasks, last in, first out.

    Cancelling cancels the tasks, waits for them, runs the cleanups and raises the cancel.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     seen = []
    ...     async with harn.scope():
    ...         harn.spawn(seen.append, 1)
    ...     return seen
    >>> harn.run(main)
    [1]
    """
    return Scope()
