"""Run a program: a function in a new runtime and event loop, until it returns or a signal comes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import signal
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

from harn.duration import Duration, to_seconds, to_text
from harn.errors import InvalidOption
from harn.event_loop import refuse_running_loop
from harn.runtime import Runtime, RuntimeOptions, logger
from harn.stopping import Stopping

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@overload
def run(
    main: Callable[[*Ts], Awaitable[T]],
    /,
    *args: *Ts,
    shutdown_timeout: Duration = "30s",
    **runtime_options: Unpack[RuntimeOptions],
) -> T: ...
@overload
def run(
    main: Callable[[*Ts], T],
    /,
    *args: *Ts,
    shutdown_timeout: Duration = "30s",
    **runtime_options: Unpack[RuntimeOptions],
) -> T: ...
def run(
    main: Callable[[*Ts], Any],
    /,
    *args: *Ts,
    shutdown_timeout: Duration = "30s",
    **runtime_options: Any,
) -> Any:
    """Run *main* with *args* inside a new `Runtime` and event loop; return its result.

    A plain function runs on a worker thread; if it returns an awaitable, that is awaited. Ctrl-C
    and SIGTERM cancel *main* and end all that the runtime owns. Then Ctrl-C raises
    `KeyboardInterrupt`, and SIGTERM `SystemExit` with 143. What has not ended within
    *shutdown_timeout*, such as a function on a thread, is not waited for: its claims are released
    and the process exits. A second signal does not wait. On another thread than the main one, no
    signal is handled.

    >>> async def main(name: str) -> str:
    ...     return f"hello, {name}"
    >>> run(main, "world")
    'hello, world'
    """
    if not callable(main):
        raise InvalidOption("main", main, "a function, such as an `async def` (not its result)")
    refuse_running_loop()

    async def inside() -> Any:
        async with Runtime(**runtime_options):
            if _is_async(main):
                return await main(*args)
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(None, functools.partial(context.run, main, *args))
            return await result if inspect.isawaitable(result) else result

    def ask() -> None:
        if stopping.signal == signal.SIGTERM:
            logger.warning("SIGTERM: stopping, within %s", to_text(timeout))
        stopping.cancel()

    timeout = to_seconds(shutdown_timeout, "shutdown_timeout")
    stopping = Stopping(timeout, ask)
    result = stopping.run(inside)
    if stopping.signal == signal.SIGTERM:
        raise stopping.as_exit()  # also if main handled its cancel: the process was told to end
    return result


def _is_async(fn: Callable[..., Any]) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - the method itself, to see if it is async
    )
