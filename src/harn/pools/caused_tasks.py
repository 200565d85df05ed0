"""The pool tasks that a piece of work causes: what it submits, and what those tasks submit.

A process that ends after its work, such as a command, has to wait for them: a session pool dies
with its process. A submit is noted where the caller's context carries a `Caused`; tasks, threads
and pool tasks inherit the context, so that nothing has to be handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from harn.errors import DeadlineExceeded
from harn.plurals import counted
from harn.tasks import deadline

if TYPE_CHECKING:
    from harn.pools.snapshots import TaskSnapshot
    from harn.pools.task import PoolTask

MOST_KEPT = 1000
"""Tasks that are kept before the completed ones are forgotten and only counted."""


class CausedOutcome(msgspec.Struct, frozen=True):
    """How the pool tasks that a piece of work caused have ended."""

    completed: int = 0
    failed: tuple[TaskSnapshot, ...] = ()
    """Those that ended in another way: failed, cancelled, rejected."""
    unfinished: tuple[TaskSnapshot, ...] = ()
    """Those that had not ended in time."""

    @property
    def is_well(self) -> bool:
        """Whether every task completed."""
        return not self.failed and not self.unfinished

    def as_dict(self) -> dict[str, Any]:
        """Return the three numbers, and the reason if it did not end well."""
        counts = {
            "completed": self.completed,
            "failed": len(self.failed),
            "unfinished": len(self.unfinished),
        }
        return counts if self.is_well else {**counts, "reason": str(self)}

    def __str__(self) -> str:
        """Say in one sentence how the work ended.

        >>> str(CausedOutcome(2))
        '2 pool tasks completed'
        """
        parts = []
        if self.completed or self.is_well:
            parts.append(f"{_tasks(self.completed)} completed")
        if self.failed:
            first = self.failed[0]
            why = f": {first.error}" if first.error else ""
            parts.append(f"{_tasks(len(self.failed))} did not end well (the first, {first.id} of ")
            parts[-1] += f"pool {first.pool!r}, is {first.status}{why})"
        if self.unfinished:
            first = self.unfinished[0]
            parts.append(f"{_tasks(len(self.unfinished))} had not ended in time (the first, ")
            parts[-1] += f"{first.id} of pool {first.pool!r}, is {first.status})"
        return ", ".join(parts)


class Caused:
    """The pool tasks noted so far; `causing` puts one into the context."""

    def __init__(self) -> None:
        self._tasks: dict[PoolTask, None] = {}
        self._completed = 0
        self._room = MOST_KEPT

    def note(self, task: PoolTask) -> None:
        """Note that *task* was submitted because of this work."""
        self._tasks[task] = None
        if len(self._tasks) > self._room:
            done = [each for each in self._tasks if each.done() and each.status == "completed"]
            for each in done:
                del self._tasks[each]
            self._completed += len(done)
            self._room = MOST_KEPT + 2 * len(self._tasks)

    @property
    def unfinished(self) -> int:
        """How many tasks have not ended."""
        return sum(not task.done() for task in self._tasks)

    async def wait(self, within: float) -> CausedOutcome:
        """Wait until every task has ended, *within* seconds; return how they ended.

        Tasks that are submitted meanwhile count. Cancelling leaves the tasks alone.
        """
        try:
            async with deadline(within):
                await self._all_ended()
        except DeadlineExceeded:
            pass
        seen = [task.snapshot() for task in self._tasks]
        completed = sum(each.status == "completed" for each in seen)
        ended = [each for each in seen if each.finished_at is not None]
        return CausedOutcome(
            self._completed + completed,
            tuple(each for each in ended if each.status != "completed"),
            tuple(each for each in seen if each.finished_at is None),
        )

    async def wait_for_closures(self) -> None:
        """Wait until every task has ended that a crash of this process would lose.

        Durable calls in a journal survive it. Cancelling leaves the tasks alone.
        """
        await self._all_ended(lambda task: task._extras.call is None)

    async def _all_ended(self, counts: Callable[[PoolTask], bool] = lambda task: True) -> None:
        waited: set[PoolTask] = set()
        while new := [task for task in self._tasks if task not in waited]:
            for task in filter(counts, new):
                await task.wait()  # also for one that has ended: its journal may be behind
            waited.update(new)


caused_var: ContextVar[Caused | None] = ContextVar("harn_caused", default=None)


@contextmanager
def causing() -> Iterator[Caused]:
    """Note the pool tasks that the block causes, and those that they cause in turn."""
    found = Caused()
    token = caused_var.set(found)
    try:
        yield found
    finally:
        caused_var.reset(token)


def current_caused() -> Caused | None:
    """Return where the tasks of the calling context are noted, if anywhere."""
    return caused_var.get()


def _tasks(count: int) -> str:
    return counted(count, "pool task")
