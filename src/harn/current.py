"""The runtime, the frame and the context values that a call belongs to.

A call finds its frame in a contextvar, and its runtime through the frame. A call without a context
means the only open runtime of the process (`open_runtimes.py`); if none is open, the event loop
gets one in memory, which is closed with the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from threading import get_ident
from typing import TYPE_CHECKING, Any

from harn.context import Frame, current_frame_var
from harn.errors import HarnError, InvalidOption
from harn.event_loop import refuse_trio, task_running_on
from harn.open_runtimes import only_open
from harn.runtime import Runtime

if TYPE_CHECKING:
    from harn.running_context import RuntimeContext

_frame_here = current_frame_var.get  # saves an attribute lookup for each call


def current_frame() -> Frame:
    """Return the innermost frame of the code now running, which must be on the runtime's loop.

    A thread without an event loop may ask too.
    """
    frame = _frame_here(None)
    if frame is not None:
        # What `check_here` asks first. Measured: with the call, this function takes 18 % longer.
        runtime = frame.task.runtime
        loop = runtime._loop
        if get_ident() == runtime._thread_id and loop and task_running_on(loop) is not None:
            return frame
    frame = calling_frame()
    frame.task.runtime.check_here()
    return frame


def calling_frame() -> Frame:
    """Return the frame that a call from here belongs to, on whatever loop or thread."""
    frame = current_frame_var.get(None)
    if frame is None:
        return _without_context().frame
    if frame.task.runtime._is_inherited:
        frame.task.runtime.check_here()  # raises, with the reason
    return frame


def current_runtime() -> Runtime:
    """Return the runtime of the calling context, else the only open one of this process.

    So a request handler finds the runtime that the application's lifespan opened, and a thread
    the one of `run_in_thread`. With several open and none in the context it raises `HarnError`.
    If none is open, the event loop gets one in memory, which keeps nothing when it ends.

    >>> async def main() -> bool:
    ...     async with Runtime() as runtime:
    ...         return current_runtime() is runtime
    >>> asyncio.run(main())
    True
    """
    return calling_frame().task.runtime


def _without_context() -> Runtime:
    found = only_open()
    return found if found is not None else _implicit_runtime()


def _implicit_runtime() -> Runtime:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        refuse_trio()
        raise HarnError(
            "no runtime is open: call this inside harn.run(...), `async with Runtime()`, "
            "or `with run_in_thread()`"
        ) from None
    runtime: Runtime | None = getattr(loop, "harn_runtime", None)
    if runtime is None or runtime.closing:
        # The loop holds it, and nothing else does: both are freed when the loop is.
        runtime = loop.harn_runtime = Runtime()  # type: ignore[attr-defined]
        runtime._keeps_nothing = True
        runtime._start()
        _close_with_loop(runtime)
    return runtime


def _close_with_loop(runtime: Runtime) -> None:
    # asyncio.run closes every async generator before it closes the loop. To have one is the only
    # way to await something when a loop ends.
    async def until_the_end() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await runtime.aclose()

    generator = until_the_end()
    runtime._until_the_end = generator  # type: ignore[attr-defined]
    try:
        generator.asend(None).send(None)
    except StopIteration:
        pass


def runtime_context() -> RuntimeContext:
    """Return which task runs here, and for which workflow, agent, trigger and tenant.

    >>> async def main() -> str:
    ...     return runtime_context().task_id
    >>> asyncio.run(main())
    'task_root'
    """
    from harn.running_context import context_of  # its classes take a while to make

    return context_of(calling_frame().task)


def runtime_context_get(key: str, default: Any = None) -> Any:
    """Return this task's context value under *key*.

    >>> import harn
    >>> async def main() -> str:
    ...     harn.runtime_context_set("request", "r-1")
    ...     return await harn.spawn(harn.runtime_context_get, "request")
    >>> harn.run(main)
    'r-1'
    """
    return calling_frame().task.values.get(key, default)


def runtime_context_set(key: str, value: Any) -> Any:
    """Set a context value for this task and the children it starts from now on.

    Returns the previous value, or None.

    >>> import harn
    >>> async def main() -> str:
    ...     harn.runtime_context_set("request", "r-1")
    ...     return harn.runtime_context_set("request", "r-2")
    >>> harn.run(main)
    'r-1'
    """
    if not isinstance(key, str) or not key:
        raise InvalidOption("key", key, "a non-empty string")
    task = calling_frame().task
    previous = task.values.get(key)
    task.values = {**task.values, key: value}
    return previous


def runtime_context_clear(key: str) -> Any:
    """Remove a context value from this task; returns what it was, or None.

    >>> import harn
    >>> async def main() -> tuple[str, None]:
    ...     harn.runtime_context_set("request", "r-1")
    ...     return harn.runtime_context_clear("request"), harn.runtime_context_get("request")
    >>> harn.run(main)
    ('r-1', None)
    """
    task = calling_frame().task
    left = dict(task.values)
    previous = left.pop(key, None)
    task.values = left
    return previous


def runtime_context_values() -> dict[str, Any]:
    """Return a copy of this task's context values.

    >>> import harn
    >>> async def main() -> dict[str, str]:
    ...     harn.runtime_context_set("request", "r-1")
    ...     return harn.runtime_context_values()
    >>> harn.run(main)
    {'request': 'r-1'}
    """
    return dict(calling_frame().task.values)
