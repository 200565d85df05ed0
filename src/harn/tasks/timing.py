"""`sleep` waits, `deadline` ends a block that takes too long, `retry` calls a function again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from harn.clock import Timer, resolve
from harn.current import current_frame, current_runtime
from harn.duration import Duration, to_seconds, to_text
from harn.errors import DeadlineExceeded, HarnError
from harn.event_loop import running_loop
from harn.graceful_stop import asked, is_stop, park, raise_if_asked
from harn.option_checks import whole_number
from harn.tasks.isolation import bind
from harn.teardown import note

T = TypeVar("T")

MAX_BACKOFF = 30.0


async def sleep(duration: Duration) -> None:
    """Wait for *duration* by the runtime's clock (a bare number is seconds).

    Cancelling cancels the timer; a graceful stop ends the wait with `TaskCancelled`.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.sleep("1ms")
    ...     return "awake"
    >>> harn.run(main)
    'awake'
    """
    seconds = to_seconds(duration)
    if asked:
        raise_if_asked()
    task = current_frame().task
    clock = task.runtime.clock
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, partial(resolve, woken))
    places = park(task, woken)
    try:
        await woken
    finally:
        del places[woken]
        timer.cancel()


class Deadline:
    """A block with a time limit; made by `deadline`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: Timer | None = None
        self._passed = False

    async def __aenter__(self) -> Self:
        host = asyncio.current_task(running_loop())
        if self._timer is not None:
            raise HarnError("a deadline can be entered once; make a new one")
        assert host is not None
        self._host = host
        self._cancels_before = host.cancelling()
        clock = current_runtime().clock
        self._timer = clock.call_at(clock.monotonic() + self._seconds, self._pass)
        return self

    def _pass(self) -> None:
        self._passed = True
        self._host.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        if not self._passed:
            return
        self._passed = False
        others = self._host.uncancel() > self._cancels_before
        if isinstance(error, asyncio.CancelledError) and not others:
            exceeded = DeadlineExceeded(f"Deadline exceeded: {to_text(self._seconds)} have passed")
            note(exceeded, (error,))
            raise exceeded from error


def deadline(duration: Duration) -> Deadline:
    """Interrupt the block when *duration* has passed, and raise `DeadlineExceeded` from it.

    `async with deadline("30s")`: what the block waits for is cancelled, including the tasks of a
    `scope` inside it. The time is the runtime's monotonic clock. An outer deadline still applies
    inside an inner one. A cancel from outside stays a cancel, also when both happen at once.

    >>> import harn
    >>> async def main() -> str:
    ...     try:
    ...         async with harn.deadline("5ms"):
    ...             await harn.sleep("1h")
    ...     except harn.DeadlineExceeded as error:
    ...         return str(error)
    >>> harn.run(main)
    'Deadline exceeded: 5ms have passed'
    """
    return Deadline(to_seconds(duration))


@overload
async def retry(
    attempts: int,
    fn: Callable[[], Awaitable[T]],
    *,
    reraise: Literal[True],
    backoff_ms: Duration = 0,
) -> T: ...
@overload
async def retry(
    attempts: int, fn: Callable[[], T], *, reraise: Literal[True], backoff_ms: Duration = 0
) -> T: ...
@overload
async def retry(
    attempts: int,
    fn: Callable[[], Awaitable[T]],
    *,
    reraise: bool = False,
    backoff_ms: Duration = 0,
) -> T | None: ...
@overload
async def retry(
    attempts: int, fn: Callable[[], T], *, reraise: bool = False, backoff_ms: Duration = 0
) -> T | None: ...
async def retry(
    attempts: int,
    fn: Callable[[], Any],
    *,
    reraise: bool = False,
    backoff_ms: Duration = 0,
) -> Any:
    """Call *fn* up to *attempts* times; return its first value, or None if every attempt fails.

    *reraise* raises the last error instead of returning None. *backoff_ms* is the pause after the
    first failure; it doubles each time, up to 30 s. A plain *fn* runs on a worker thread.

    Cancels, graceful stops, deadlines and exits are never caught: they are raised at once.

    >>> import harn
    >>> async def main() -> object:
    ...     return await harn.retry(3, lambda: 1 / 0)
    >>> print(harn.run(main))
    None
    """
    whole_number("attempts", attempts, least=1)
    pause = to_seconds(backoff_ms, "backoff_ms")
    runtime = current_runtime()
    call = bind(runtime, fn, "auto")
    for attempt in range(1, attempts + 1):
        try:
            return await call()
        except DeadlineExceeded:
            raise
        except Exception as error:
            if _is_exit(error) or is_stop(current_frame().task, error):
                raise
            if attempt == attempts:
                if reraise:
                    raise
                return None
        if pause:
            await sleep(pause)
            pause = min(pause * 2, MAX_BACKOFF)
    return None


def _is_exit(error: Exception) -> bool:
    """Tell whether a function on a thread raised an exit, such as `SystemExit`."""
    cause = error.__cause__
    return type(error) is HarnError and cause is not None and not isinstance(cause, Exception)
