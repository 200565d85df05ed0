"""How a task starts: its handle is made, its owner adopts it, and asyncio runs it in a frame.

The owner comes first, so that no task runs, even for a moment, without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from threading import get_ident
from typing import Any, TypeVar

from harn.context import Frame, Task, current_frame_var
from harn.errors import HarnError
from harn.tasks.handle import Nursery, TaskHandle
from harn.teardown import unwind

T = TypeVar("T")

_new = TaskHandle.__new__


def launch(
    task: Task,
    call: Callable[..., Awaitable[T]],
    args: tuple[Any, ...] = (),
    *,
    nursery: Nursery | None = None,
    frame: Frame | None = None,
    ends_inside: bool = False,
) -> TaskHandle[T]:
    """Start *call* as *task*, owned by *nursery*, or by the runtime if there is none.

    *call* is an async function (`isolation.runner_for` makes one of a plain function). Rooms above
    use this to choose the names and groups of their tasks; users have `spawn`. With *ends_inside*
    the nursery hears of a task that returns while it still is the current one, which is cheaper:
    for a nursery that starts nothing then, because it would inherit the context of the task.
    """
    runtime = task.runtime
    loop = runtime._loop
    if loop is None or get_ident() != runtime._thread_id:
        loop = _running_loop()
    handle: TaskHandle[T] = _new(TaskHandle)
    handle._begin(task, nursery)
    if nursery is not None:
        nursery.adopt(handle)
    elif runtime.closing:
        raise HarnError("this Runtime has been closed and accepts no more tasks")
    context = copy_context()
    if ends_inside:
        running = run_in_frame(frame, call, args, handle)
    else:
        running = run_in_frame(frame or Frame(task, nursery), call, args)
    # Not `loop.create_task`: an eager task factory would run it before it has an owner.
    aio = asyncio.Task(running, loop=loop, name=task.id, context=context)
    handle._run_by(aio, context if ends_inside else None)
    if nursery is None:
        runtime.own(aio)
    return handle


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise HarnError(
            "a task starts on the event loop; on a worker thread: from_thread(spawn, fn)"
        ) from None


def take_over(task: Task, aio: asyncio.Task[T], nursery: Nursery) -> TaskHandle[T]:
    """Return the handle of *task*, owned by *nursery*, that *aio* runs already."""
    handle: TaskHandle[T] = _new(TaskHandle)
    handle._begin(task, nursery)
    nursery.adopt(handle)
    aio.set_name(task.id)
    handle._run_by(aio)
    return handle


async def run_in_frame(
    frame: Frame | None,
    call: Callable[..., Awaitable[T]],
    args: tuple[Any, ...],
    handle: TaskHandle[T] | None = None,
) -> T:
    """Await *call* with *frame* as the current one, and unwind it at the end.

    A *handle* is told when the task returns; with it, the frame may be made here.
    """
    if frame is None:
        assert handle is not None
        frame = Frame(handle._task, handle._nursery)
    current_frame_var.set(frame)
    try:
        value = await call(*args)
    except BaseException as error:
        handle = None  # the traceback must not keep it: the error is logged when it is collected
        if frame.cleanups and (chosen := await unwind(frame, error)) is not error:
            assert chosen is not None
            raise chosen from error
        raise
    if frame.cleanups and (chosen := await unwind(frame)) is not None:
        handle = None
        raise chosen
    if handle is not None:
        handle._returned(value)
    return value
