"""Run a task's function on another event loop or in another process, with the task's identity.

A worker process, or a thread with its own event loop, has no runtime. It gets a `TaskIdentity`
(the ids, names and values of its task) and makes a small runtime from it, so that
`runtime_context()` returns the same there as on the runtime's loop. What is durable is shared with
the runtime: the store, the journals, the limits. What is in the runtime's memory is not: its
pools, permits, cells and mailboxes, and a log without a store.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from harn.context import Ambient, Frame, Task, Work, WorkTask, current_frame_var
from harn.runtime import Runtime


class TaskIdentity(msgspec.Struct, frozen=True):
    """The ids, names and values of a task, which can be copied to another process."""

    id: str
    name: str
    parent_id: str | None
    root_id: str
    group_id: str | None
    ambient: Ambient
    values: Mapping[str, Any]
    work: Work | None
    home: Mapping[str, str]
    """The state directory and the storage of its runtime."""

    def __repr__(self) -> str:  # without its home: a URL may hold a password
        return f"TaskIdentity({self.id!r}, {self.name!r})"

    @classmethod
    def of(cls, task: Task) -> TaskIdentity:
        """Describe *task*."""
        parent = task.parent.id if task.parent else None
        root, runtime = task.root.id, task.runtime
        home = {"state_dir": str(runtime.state_dir), "storage": runtime.storage_url}
        if runtime.clock.is_fake:
            home = {}  # the other side has real time: it must not write into this store
        group, ambient = task.group_id, task.ambient
        return cls(task.id, task.name, parent, root, group, ambient, task.values, task.work, home)

    def frame(self, cancel_from: Task | None = None) -> Frame:
        """Return the frame of a task with this identity, in a new runtime."""
        runtime = Runtime(**self.home)  # type: ignore[arg-type]
        runtime._serves_another = True
        root = Task(runtime, self.root_id, "root", None, ambient=self.ambient)
        parent = root
        if self.parent_id not in (None, self.root_id):
            parent = Task(runtime, str(self.parent_id), "", root)
        task = WorkTask(
            runtime,
            self.id,
            self.name,
            parent if self.parent_id else None,
            group_id=self.group_id,
            ambient=self.ambient,
            cancel_from=cancel_from,
            work=self.work,
        )
        task.values = self.values
        return Frame(task)


def run_on_own_loop(
    task: Task, began: Callable[[Callable[[], None]], None], fn: Callable[..., Any], *args: Any
) -> Any:
    """Run the async *fn* in a new event loop on this thread, with the identity of *task*.

    *began* receives a function that cancels it, callable from any thread.
    """
    return run_with(TaskIdentity.of(task).frame(cancel_from=task), fn, *args, began=began)


def run_with(
    frame: Frame,
    fn: Callable[..., Any],
    *args: Any,
    began: Callable[[Callable[[], None]], None] | None = None,
) -> Any:
    """Call *fn* with *frame* as the current one; if it returns an awaitable, run that.

    An async function has an open runtime: it may spawn, and its tasks are ended with it.
    """
    current_frame_var.set(frame)
    result = fn(*args)
    return asyncio.run(_inside(frame, result, began)) if inspect.isawaitable(result) else result


async def _inside(
    frame: Frame, result: Awaitable[Any], began: Callable[[Callable[[], None]], None] | None
) -> Any:
    async with frame.task.runtime:
        current_frame_var.set(frame)
        if began is not None:
            here = asyncio.current_task()
            assert here is not None
            began(partial(_cancel, asyncio.get_running_loop(), here))
        return await result


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the function has ended
        loop.call_soon_threadsafe(task.cancel)
