"""A running closure, as the runtime sees it: its task and its frame."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from harn.context import Frame, Task, Work, current_frame_var
from harn.durable_work import DurableWork
from harn.tasks import works_for

if TYPE_CHECKING:
    from harn.pools.slots import Slots
    from harn.pools.task import PoolTask
    from harn.pools.worker import Worker


class ClosureTask(Task):
    """A running closure as a task of the runtime; its id is made when it is first read."""

    __slots__ = ("_steps", "pool_task")

    def __init__(self, pool_task: PoolTask, parent: Task, aio: asyncio.Task[Any]) -> None:
        slots = pool_task._slots
        super().__init__(slots.runtime, "", "pool task", parent, group_id=slots.names.id)
        self.pool_task: PoolTask = pool_task
        self.values: dict[str, Any] = pool_task._extras.values or {}
        self.cancel_requested: bool = pool_task._stopping
        self.aio: asyncio.Task[Any] | None = aio
        self._steps: DurableWork | None = None

    @property
    def durable(self) -> DurableWork | None:
        """The durable call that this closure is, if a journal or a store keeps it."""
        if self._steps is None and self.pool_task._extras.call is not None:
            self._steps = self.pool_task._slots.steps_of(self.pool_task)
        return self._steps

    @durable.setter
    def durable(self, value: object) -> None:
        pass

    @property
    def id(self) -> str:
        """The pool task's id."""
        return self.pool_task.id

    @id.setter
    def id(self, value: str) -> None:
        pass

    @property
    def work(self) -> Work:
        """The pool task."""
        return Work("pool_task", self.pool_task.pool, self.pool_task.id)


class ClosureFrame(msgspec.Struct, eq=False):
    """The `Frame` of a running closure; its task is made when it is first asked for.

    Most closures never ask for it, and every closure has a frame. So this is a struct with a
    frame's three attributes and not a subclass: making one costs a third.
    """

    pool_task: PoolTask
    _outer: Frame
    _worker: Worker
    nursery: Any = None
    cleanups: Any = None
    _task: Any = None

    @property
    def task(self) -> ClosureTask:
        """The closure as the runtime sees it."""
        task: ClosureTask | None = self._task
        if task is None:
            task = self._task = ClosureTask(self.pool_task, self._outer.task, self._worker.aio)
            if self._worker.begun is self.pool_task:
                task.runtime.tasks.add(task)
        return task

    def runs_here(self, aio: asyncio.Task[Any] | None) -> bool:
        """Tell whether *aio* is the closure itself, not a child that inherited this frame."""
        return self._worker.begun is self.pool_task and self._worker.aio is aio

    def end(self) -> None:
        """Note that the closure has ended."""
        if self._task is not None:
            self._task.runtime.tasks.discard(self._task)


def is_inside(slots: Slots) -> bool:
    """Tell whether the caller is a closure of this pool (not a child task of one).

    A closure on a thread that comes here through `from_thread` is one, too.
    """
    frame: Any = current_frame_var.get(None)
    if frame is None:
        return False
    if type(frame) is ClosureFrame:
        return frame.pool_task._slots is slots and frame.runs_here(
            works_for(asyncio.current_task())
        )
    task = frame.task  # a scope inside a closure has a frame of its own
    return (
        type(task) is ClosureTask
        and task.pool_task._slots is slots
        and task.aio is works_for(asyncio.current_task())
    )
