"""Which task waits for which, and the moment when none is left that could wake another.

A task that blocks on a channel without a timeout says so in `Task.waiting`; one that awaits other
tasks, or queues for a permit, does the same. While a task is blocked on a channel a timer looks
now and then whether the whole loop has come to rest for good: every task of the runtime blocked
in one of these ways, nothing ready to run, no timer, no thread, subprocess, socket, signal
handler or foreign asyncio task left that could wake one of them. Then, and only then, the task
that blocked last gets a `ChannelDeadlock`. It may handle it, and set the others free; if not, the
next look gives the error to the next one.

Looking costs nothing while messages flow, a timer callback a few times a second while a task is
blocked. What cannot be seen into (an event loop that is not asyncio's own) counts as alive.
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
from harn.quiescence import can_look_into, outside_work, something_ready
from harn.runtime import Runtime
from harn.stopping import Stopping
from harn.sync.wait_queue import GONE, WAITING, Waiter, guard, task_running_on
from harn.tasks import AwaitingTasks

if TYPE_CHECKING:
    from harn.sync.channel import Channel

LOOK_EVERY = 0.3
"""Seconds between two looks; a deadlock is found by the second look at the latest."""
MOST_NAMED = 12
"""Tasks that a message names; the others are counted."""
CHANNEL_VERBS = {"receive", "send", "select"}


def began_waiting(waiter: Waiter, is_watched: bool = True) -> Task:
    """Note that the current task is about to block on a channel, and return it.

    The caller passes it to `ended_waiting` when it is no longer blocked. A mailbox is not watched:
    a graceful stop reaches the task, but the detector takes no notice of it.
    """
    task = (current_frame_var.get(None) or current_frame()).task
    task.parked = waiter.future
    # A plain asyncio task with our context is a stranger to the detector.
    if is_watched and task.aio is task_running_on(waiter.future.get_loop()):
        runtime = task.runtime
        detector = runtime._services.get(Detector)  # saves a call
        if detector is None:
            if runtime.closing:
                return task
            detector = runtime.service(Detector)
        task.waiting = waiter
        detector.turn = waiter.order = detector.turn + 1
        if detector.timer is None:
            detector.look_later()
    return task


def ended_waiting(task: Task, waiter: Waiter) -> None:
    """Take back what `began_waiting` noted."""
    if task.parked is waiter.future:
        task.parked = None
    if task.waiting is waiter:
        task.waiting = None


class Detector:
    """Looks for deadlocks of one runtime while a task is blocked on a channel."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.turn = 0
        self.timer: Timer | None = None
        self._seen = 0
        self._pause = LOOK_EVERY

    def look_later(self) -> None:
        """Look again in a while, by the real time: a deadlock is real under a fake clock too."""
        loop = self.runtime.loop
        self.timer = loop.call_later(self._pause, self._look)
        if hasattr(loop, "harn_clock"):  # virtual time: looks must not slow its jumps
            self._pause = min(self._pause * 2, 86_400.0)

    def _look(self) -> None:
        self.timer = None
        quiet = self._seen == self.turn
        self._seen = self.turn
        if quiet and not any(map(_blocked_on_channel, self.runtime.tasks)):
            self._pause = LOOK_EVERY
            return
        if possible_waker(self.runtime) is None:
            self._break_up()
        self.look_later()

    def _break_up(self) -> None:
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
        """Stop looking."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _blocked_on_channel(task: Task) -> bool:
    return isinstance(task.waiting, Waiter) and task.waiting.verb in CHANNEL_VERBS


def possible_waker(runtime: Runtime) -> str | None:
    """Name something that could still wake a blocked task of *runtime*, or return None."""
    loop = runtime.loop
    if not can_look_into(loop):
        return "an event loop that cannot be looked into"
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
    # Here a listening server counts too: the next connection may bring the next message.
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
            continue  # how asyncio.run turns Ctrl-C into a cancel
        if getattr(handler, "func", None) is not None and _of_a_runner(handler):
            continue
        if isinstance(getattr(handler, "__self__", None), Stopping):
            continue  # it ends the program, and wakes no task in it
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
    """Say in words what a task's `waiting` record waits for."""
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
