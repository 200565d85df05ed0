"""Stop a task kindly: it sees that it was asked to, and is cancelled if it does not listen."""

from __future__ import annotations

from typing import TypeVar

from harn.clock import SystemClock
from harn.current import current_frame
from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption, TaskCancelled
from harn.graceful import request_stop
from harn.tasks.handle import TaskHandle
from harn.tasks.results import Err, Ok
from harn.tasks.threads import current_call
from harn.teardown import REPORT_AFTER, logger

T = TypeVar("T")


def is_cancelled() -> bool:
    """Tell whether the current task was asked to stop; works on worker threads too.

    True after `cancel()` and `cancel_graceful()` of this task or of one that it was started by,
    and while the runtime is being left.

    >>> import harn
    >>> async def main() -> bool:
    ...     return harn.is_cancelled()
    >>> harn.run(main)
    False
    """
    task = current_frame().task
    call = current_call.get(None)
    return task.cancelled or task.runtime.closing or (call is not None and call.stop_requested)


async def cancel_graceful(
    handle: TaskHandle[T], timeout: Duration = "5s"
) -> Ok[T] | Err[BaseException]:
    """Ask the task to stop, wait up to *timeout* for it to do so itself, then cancel it.

    The stop is told once: `is_cancelled()` turns true in the task, and `TaskCancelled` comes out
    of the wait of ours that it is in (sleep, a channel, a mailbox, a permit, another task ...), or
    of the next one it enters. Later waits work again, so that it can tidy up and return. Awaits of
    anything else are left alone until *timeout*. A task that has ended, before or after, gives its
    outcome: `Ok(value)` or `Err(exception)`, with `TaskCancelled` for one that let the stop pass or
    was cancelled. A thread that will not stop is left to its runtime and reported as abandoned.

    Cancelling this leaves the request standing and the task with its owner.

    >>> import harn
    >>> async def polite() -> str:
    ...     try:
    ...         await harn.sleep("1h")
    ...     except harn.TaskCancelled:
    ...         return "bye"
    >>> async def main() -> object:
    ...     return await harn.cancel_graceful(harn.spawn(polite))
    >>> harn.run(main)
    Ok(value='bye')
    """
    seconds = to_seconds(timeout, "timeout")
    if not isinstance(handle, TaskHandle):
        raise InvalidOption("handle", handle, "a TaskHandle, as spawn returns it")
    if handle.done():
        return handle.outcome()
    if handle.task is current_frame().task:
        raise InvalidOption("handle", handle, "another task: this one would wait for itself")
    request_stop(handle.task)
    if await handle.ends(seconds, handle.task.runtime.clock):
        return handle.outcome()
    handle.cancel()
    while not await handle.ends(REPORT_AFTER, _REAL):
        if handle.task.thread is not None:
            return Err(TaskCancelled(f"{handle!r} is abandoned: {handle.task.thread} still runs"))
        logger.warning("%r still runs %g s after its cancel", handle, REPORT_AFTER)
    if handle.status == "cancelled":
        return Err(TaskCancelled("cancel_graceful: timeout, task forcefully aborted"))
    return handle.outcome()


_REAL = SystemClock()
"""Threads live in real time, whatever clock the runtime has."""
