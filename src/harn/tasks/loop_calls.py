"""Calls from a thread to the runtime's event loop: `from_thread`.

It is the way back from `threads.py`. The thread waits for the answer. If it runs a function of a
task (`ThreadCall`), cancelling that task also cancels what its thread has called here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple, overload

from harn.context import current_frame_var
from harn.current import calling_frame
from harn.errors import HarnError
from harn.event_loop import answer_of
from harn.runtime import Runtime
from harn.tasks.callables import is_async_callable
from harn.tasks.threads import ThreadCall, current_call

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@overload
def from_thread(fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T: ...


@overload
def from_thread(fn: Callable[[*Ts], T], *args: *Ts) -> T: ...


@overload
def from_thread(fn: Callable[..., Any], *args: Any) -> Any: ...  # mypy: an overloaded function


def from_thread(fn: Callable[..., Any], *args: *Ts) -> Any:
    """From another thread: run *fn* with *args* on the runtime's loop, wait, return its value.

    On a worker thread, that is the runtime of its task. On any other thread it is the only open
    runtime of the process, such as that of `run_in_thread`. *fn* may be async or plain; both run on
    the loop, as the thread's task, so a plain one must be quick. (`from_thread(spawn, work)` starts
    a task and returns its handle; `from_thread(handle.wait)` waits for it.) An error of *fn* is
    raised here. If the thread's task is cancelled, *fn* is cancelled and `CancelledError` is raised
    here, once.

    >>> import harn
    >>> async def fetch(n: int) -> int:
    ...     return n + 1
    >>> def work() -> int:
    ...     return harn.from_thread(fetch, 41)
    >>> async def main() -> int:
    ...     return await harn.spawn(work)
    >>> harn.run(main)
    42
    """
    frame = calling_frame()
    runtime = frame.task.runtime
    if runtime.on_loop_thread():
        raise HarnError("from_thread is for worker threads; on the event loop, call or await it")
    loop = runtime.loop
    context = contextvars.copy_context()
    context.run(current_frame_var.set, frame)
    reply: concurrent.futures.Future[Any] = concurrent.futures.Future()
    begin = functools.partial(_begin, runtime, current_call.get(None), fn, args, reply)
    with suppress(RuntimeError):  # the loop is closed: `answer_of` raises
        loop.call_soon_threadsafe(begin, context=context)
    return answer_of(loop, reply)


def _begin(
    runtime: Runtime,
    call: ThreadCall | None,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    reply: concurrent.futures.Future[Any],
) -> None:
    # Not `loop.create_task`: an eager task factory would run it before its thread is known.
    task = asyncio.Task(_run(fn, args), loop=runtime.loop)
    runtime.own(task)
    task.add_done_callback(functools.partial(_answer, reply, call))
    if call is not None:
        call.loop_tasks.add(task)
        call.count()
        if call.must_cancel:
            call.must_cancel = False
            task.cancel()


def works_for(running: asyncio.Task[Any] | None) -> asyncio.Task[Any] | None:
    """Return the task whose thread started *running* through `from_thread`; else *running*."""
    call = current_call.get(None)
    if call is not None and running in call.loop_tasks:
        return call.task.aio
    return running


async def _run(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    result = fn(*args)
    # A task handle is awaitable too, but `from_thread(spawn, fn)` must return the handle.
    return await result if is_async_callable(fn) or inspect.iscoroutine(result) else result


def _answer(
    reply: concurrent.futures.Future[Any], call: ThreadCall | None, task: asyncio.Task[Any]
) -> None:
    if call is not None:
        call.loop_tasks.discard(task)
        call.count()
    if task.cancelled():
        reply.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        reply.set_exception(error)
    else:
        reply.set_result(task.result())
