"""The note that a task awaits other tasks, for the deadlock detector."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from harn.context import Task


class AwaitingTasks:
    """The value of `Task.waiting` while a task awaits *tasks*; the deadlock detector reads it.

    *tasks* may be a live view: it is read when the detector runs.
    """

    __slots__ = ("tasks",)

    def __init__(self, tasks: Collection[Task]) -> None:
        self.tasks: Collection[Task] = tasks

    def note_on(self, task: Task) -> bool:
        """Set `task.waiting`; return whether it was set, so that the caller must clear it.

        It is not set if the caller is another asyncio task that was started inside *task*.
        """
        if task.aio is not asyncio.current_task():
            return False
        task.waiting = self
        return True
