"""Cancelling a shared pool's tasks, wherever they are, and undoing submits.

A queued task is cancelled in the store. For a task that runs elsewhere the request is written
there, and the process that runs it reads it. One that runs here is cancelled at once; if it is a
call that the store would give to another process after a crash, the request is written, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harn.pools.shared_work import Cancel, Withdraw
from harn.pools.worker import Worker

if TYPE_CHECKING:
    from harn.pools.shared_pool_slots import SharedPoolSlots
    from harn.pools.task import PoolTask


class Cancels:
    """The requests to cancel tasks of one pool, made here or read from the store."""

    __slots__ = ("_slots",)

    def __init__(self, slots: SharedPoolSlots) -> None:
        self._slots = slots

    def cancel(self, task: PoolTask) -> None:
        """End *task* as cancelled: at once if it is queued, else at its closure's next await."""
        task._stop()
        if task in self._slots.here:
            self.stop_here(task)
            if not runs_again(task):
                return
        if (id := task._extras.ticket) > 0:
            self._ask_until_answered(Cancel(id), self._cancel_answered)

    def stop_here(self, task: PoolTask) -> None:
        """Cancel the closure of *task*, which runs here."""
        task._stop()
        worker = task._place
        if isinstance(worker, Worker) and worker.begun is task:
            worker.stop()

    def asked(self, id: int) -> None:
        """Carry out a request in the store to cancel a running task."""
        slots = self._slots
        task = slots.mirror.by_id.get(id)
        if task is None or task._finished_ms is not None:
            return
        if task not in slots.here:  # it runs elsewhere, or the answer to its claim is on its way
            slots.mirror.asked.add(id)
        elif not task._stopping:
            self.stop_here(task)

    def _cancel_answered(self, id: int, answer: str) -> None:
        task = self._slots.mirror.by_id.get(id)
        if answer == "asked":
            self.asked(id)
        elif answer == "cancelled" and task is not None:
            self._slots.ended_there(task, "cancelled", None)
            self._slots.changed()

    def undo_own(self, task: PoolTask) -> None:
        """Undo the submit of *task*, unless the store does not have it or another caller does."""
        if task._extras.ticket > 0 and not task._extras.shared:
            self.undo(task._extras.ticket)

    def undo(self, id: int) -> None:
        """Undo the submit of a task; cancel the task if it has begun."""
        self._ask_until_answered(Withdraw(id), self._undone)

    def _undone(self, id: int, is_undone: bool) -> None:
        task = self._slots.mirror.by_id.get(id)
        if is_undone:
            self._slots.changes.forget(id)
        elif task is not None:
            self.cancel(task)

    def _ask_until_answered(
        self, item: Cancel | Withdraw, answered: Callable[[int, Any], None]
    ) -> None:
        """Ask for *item*, again if the operation fails; *answered* is called with its result."""
        slots = self._slots

        def take(asked: asyncio.Future[Any]) -> None:
            if asked.cancelled():
                return
            error = asked.exception()
            if slots.state in ("closed", "dropped"):
                return
            if error is None:
                answered(item, asked.result())
            else:
                slots.recovery.failed([lambda: self._ask_until_answered(item, answered)])

        slots.work.ask(item).add_done_callback(take)


def runs_again(task: PoolTask) -> bool:
    """Tell whether the store gives *task* to another process if this one dies."""
    call = task._extras.call
    return call is not None and call.function.rerun
