"""`retry` calls a function again until it returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, overload

from harn.current import current_frame, current_runtime
from harn.duration import Duration, to_seconds
from harn.errors import DeadlineExceeded, HarnError
from harn.graceful_stop import is_stop
from harn.option_checks import whole_number
from harn.tasks.isolation import bind
from harn.tasks.sleep import sleep

T = TypeVar("T")

MAX_BACKOFF = 30.0
"""The most seconds of a pause between two attempts."""


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
            if reraise and attempt == attempts:
                raise
        if pause and attempt < attempts:
            await sleep(pause)
            pause = min(pause * 2, MAX_BACKOFF)
    return None


def _is_exit(error: Exception) -> bool:
    """Tell whether a function on a thread raised an exit, such as `SystemExit`."""
    cause = error.__cause__
    return type(error) is HarnError and cause is not None and not isinstance(cause, Exception)
