"""Stop a task gracefully: ask it to stop, and cancel it if it does not within a timeout."""

from __future__ import annotations

from typing import TypeVar

from harn.clock import REAL_TIME
from harn.current import current_frame
from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption, TaskCancelled
from harn.graceful_stop import request_stop
from harn.tasks.handle import TaskHandle
from harn.tasks.results import Err, Ok
from harn.tasks.threads import current_call
from harn.teardown import REPORT_AFTER, logger

T = TypeVar("T")


def is_cancelled() -> bool:
    """Tell whether the current task was asked to stop; works on worker threads too.

    True after `cancel()` or `cancel_graceful()` of this task or of a task that started it, and
    while the runtime is being closed.

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

    The task is asked once: `is_cancelled()` becomes true in it, and `TaskCancelled` is raised from
    the wait of this library that it is in (sleep, a channel, a mailbox, a permit, another task
    ...), or from the next one it enters. Later waits work again, so that it can clean up and
    return. Other awaits are not interrupted before *timeout*. The result is the task's outcome:
    `Ok(value)` or `Err(exception)`. The exception is `TaskCancelled` if the task did not catch the
    stop or was cancelled. A function on a thread that does not stop is reported as abandoned.

    Cancelling this does not withdraw the request; the task stays with its owner.

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
        return handle._outcome()
    if handle._task is current_frame().task:
        raise InvalidOption("handle", handle, "another task: this one would wait for itself")
    request_stop(handle._task)
    if await handle._join_within(seconds, handle._task.runtime.clock):
        return handle._outcome()
    handle.cancel()
    while not await handle._join_within(REPORT_AFTER, REAL_TIME):
        if handle._task.thread is not None:
            return Err(TaskCancelled(f"{handle!r} is abandoned: {handle._task.thread} still runs"))
        logger.warning("%r still runs %g s after its cancel", handle, REPORT_AFTER)
    if handle.status == "cancelled":
        return Err(TaskCancelled("cancel_graceful: timeout, task forcefully aborted"))
    return handle._outcome()
