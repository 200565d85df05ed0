"""The deadlock detector: finds out when every task waits and nothing can wake one of them.

A task that blocks on a channel without a timeout notes that in `Task.waiting`; so does a task that
awaits other tasks or waits for a permit. While a task is blocked on a channel, a timer checks a few
times a second whether there is a deadlock: every task of the runtime is blocked in one of these
ways, nothing is ready to run, and there is no timer, thread, subprocess, socket, signal handler or
foreign asyncio task that could wake one of them. Only then the task that blocked last gets a
`ChannelDeadlock`. It may handle the error and wake the others; if it does not, the next check
gives the error to the next task.

The check costs nothing while messages flow, and a timer callback a few times a second while a task
is blocked. What cannot be inspected (an event loop that is not asyncio's own) counts as a possible
waker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from harn.clock import Timer
from harn.context import Task, current_frame_var
from harn.current import current_frame
from harn.errors import ChannelDeadlock
from harn.event_loop import task_running_on
from harn.graceful_stop import park, unpark
from harn.quiescence import can_look_into, outside_work, something_ready
from harn.runtime import Runtime
from harn.stopping import Stopping
from harn.sync.wait_queue import GONE, WAITING, Waiter, guard
from harn.tasks import AwaitingTasks

if TYPE_CHECKING:
    from harn.sync.channel import Channel

CHECK_EVERY = 0.3
"""Seconds between two checks; a deadlock is found by the second check at the latest."""
MOST_NAMED = 12
"""The most tasks that a message names; the others are counted."""
CHANNEL_VERBS = {"receive", "send", "select"}


def began_waiting(waiter: Waiter, is_watched: bool = True) -> Task:
    """Note that the current task is about to block on a channel, and return the task.

    The caller passes it to `ended_waiting` when it is no longer blocked. A mailbox is not watched:
    a graceful stop reaches the waiting task, but the detector ignores the wait.
    """
    task = (current_frame_var.get(None) or current_frame()).task
    park(task, waiter.future)
    # The detector does not know a plain asyncio task that inherited this task's context.
    if is_watched and task.aio is task_running_on(waiter.future.get_loop()):
        runtime = task.runtime
        detector = runtime._services.get(Detector)  # saves a call
        if detector is None:
            if runtime.closing:
                return task
            detector = runtime.service(Detector)
        task.waiting = waiter
        detector.blocks = waiter.order = detector.blocks + 1
        if detector.timer is None:
            detector.check_later()
    return task


def ended_waiting(task: Task, waiter: Waiter) -> None:
    """Undo what `began_waiting` noted."""
    unpark(task, waiter.future)
    if task.waiting is waiter:
        task.waiting = None


class Detector:
    """Checks one runtime for deadlocks while a task is blocked on a channel."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.blocks = 0
        """How often a task has blocked on a channel."""
        self.timer: Timer | None = None
        self._blocks_seen = 0
        self._pause = CHECK_EVERY

    def check_later(self) -> None:
        """Start the timer for the next check, in real time: a fake clock may never advance."""
        loop = self.runtime.loop
        self.timer = loop.call_later(self._pause, self._check)
        if hasattr(loop, "harn_clock"):  # virtual time: checks must not slow down its jumps
            self._pause = min(self._pause * 2, 86_400.0)

    def _check(self) -> None:
        self.timer = None
        quiet = self._blocks_seen == self.blocks
        self._blocks_seen = self.blocks
        if quiet and not any(map(_blocked_on_channel, self.runtime.tasks)):
            self._pause = CHECK_EVERY
            return
        if possible_waker(self.runtime) is None:
            self._raise_in_last()
        self.check_later()

    def _raise_in_last(self) -> None:
        """Raise `ChannelDeadlock` in the task that blocked last."""
        stuck = [task for task in self.runtime.tasks if _blocked_on_channel(task)]
        if not stuck:
            return
        last = max(stuck, key=lambda task: int(task.waiting.order))
        waiter: Waiter = last.waiting
        with guard:
            if waiter.state != WAITING or waiter.future.done():
                return
            waiter.state = GONE
            waiter.future.set_exception(_error(last, self.runtime.tasks))

    async def aclose(self) -> None:
        """Stop checking."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _blocked_on_channel(task: Task) -> bool:
    return isinstance(task.waiting, Waiter) and task.waiting.verb in CHANNEL_VERBS


def possible_waker(runtime: Runtime) -> str | None:
    """Return the name of something that could wake a blocked task of *runtime*, or None."""
    loop = runtime.loop
    if not can_look_into(loop):
        return "an event loop that cannot be inspected"
    for task in runtime.tasks:
        if not _is_stuck(task) and (task.aio is None or not task.aio.done()):
            return f"task {task.id}, which is not waiting on a channel or a task"
    if something_ready(loop):
        return "a callback that is ready"
    return (
        _pending_timer(runtime)
        or _open_fd(runtime)
        or outside_work(loop, runtime.clock.activity, runtime._known_threads)
        or _signal_handler(runtime)
        or _foreign_task(runtime)
    )


def _is_stuck(task: Task) -> bool:
    waiting = task.waiting
    if isinstance(waiting, AwaitingTasks):
        return any(awaited in task.runtime.tasks for awaited in waiting.tasks)
    return waiting is not None


def _pending_timer(runtime: Runtime) -> str | None:
    if getattr(runtime.clock, "pending", 0):
        return "a timer of the fake clock"
    idle = runtime.clock.activity.idle_timers
    loop: Any = runtime.loop
    for handle in loop._scheduled:
        if handle.cancelled() or handle in idle:
            continue
        if not isinstance(getattr(handle._callback, "__self__", None), Detector):
            return "a timer"
    return None


def _open_fd(runtime: Runtime) -> str | None:
    # A listening server counts too: the next connection may cause the next message.
    loop: Any = runtime.loop
    own = loop._ssock.fileno()
    for fd in loop._selector.get_map() or ():
        if fd != own and fd not in runtime.clock.activity.idle_fds:
            return "a socket or pipe"
    return None


def _signal_handler(runtime: Runtime) -> str | None:
    if getattr(runtime.loop, "_signal_handlers", None):
        return "a signal handler"
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if not callable(handler) or handler is signal.default_int_handler:
            continue
        if isinstance(getattr(handler, "__self__", None), asyncio.Runner):
            continue  # the handler by which asyncio.run turns Ctrl-C into a cancel
        if getattr(handler, "func", None) is not None and _of_a_runner(handler):
            continue
        if isinstance(getattr(handler, "__self__", None), Stopping):
            continue  # it ends the program and wakes no task
        if handler != runtime._known_alarm:
            return "a signal handler"
    return None


def _of_a_runner(handler: Any) -> bool:
    return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)


def _foreign_task(runtime: Runtime) -> str | None:
    ours = {task.aio for task in runtime.tasks}
    for task in asyncio.all_tasks(runtime.loop):
        if task not in ours:
            return f"asyncio task {task.get_name()!r}"
    return None


def _error(last: Task, tasks: Iterable[Task]) -> ChannelDeadlock:
    waiter: Waiter = last.waiting
    lines = [
        f"{task.id} ({task.name}) {describe(task.waiting)}"
        for task in sorted(tasks, key=lambda task: task.id)
        if task.waiting is not None
    ]
    if len(lines) > MOST_NAMED:
        lines = [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED} more"]
    return ChannelDeadlock(f"{_in_short(waiter)}; every task waits: {'; '.join(lines)}")


def _in_short(waiter: Waiter) -> str:
    if waiter.verb == "select":
        return f"select on {_names(waiter.on)} has no sender"
    partner = "sender" if waiter.verb == "receive" else "receiver"
    return f"{waiter.verb} on channel {waiter.on.name!r} has no {partner}"


def describe(waiting: Any) -> str:
    """Return in words what a task with this `waiting` waits for."""
    if isinstance(waiting, AwaitingTasks):
        awaited = [task.id for task in waiting.tasks]
        more = f" and {len(awaited) - MOST_NAMED} more" if len(awaited) > MOST_NAMED else ""
        return f"awaits {', '.join(awaited[:MOST_NAMED]) or 'tasks'}{more}"
    if not isinstance(waiting, Waiter):
        return f"waits for {waiting}"
    if waiting.verb == "receive":
        return f"waits to receive from channel {waiting.on.name!r}"
    if waiting.verb == "send":
        return f"waits to send to channel {waiting.on.name!r}"
    if waiting.verb == "select":
        return f"waits to receive from any of {_names(waiting.on)}"
    return f"waits for {waiting.on.kind} {waiting.on.key!r}"


def _names(channels: Iterable[Channel[Any]]) -> str:
    return ", ".join(f"channel {channel.name!r}" for channel in channels)
