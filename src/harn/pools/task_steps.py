"""The steps of a durable call in a pipeline pool: lines of the journal, under its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from harn.durable_work import StepRecord
from harn.errors import PoolClosed
from harn.pools.journal_records import VERSION, StepLine

if TYPE_CHECKING:
    from harn.pools.task import PoolTask


class TaskSteps:
    """One run of a durable call: the durable work of its closure.

    The journal belongs to one process, which keeps its lock until it ends. So no other process can
    have taken the call over, and there is no claim to look at.
    """

    __slots__ = ("_task", "steps", "used_tokens")

    def __init__(self, task: PoolTask[Any]) -> None:
        self._task = task
        self.steps: Any = None
        self.used_tokens: int = 0

    @property
    def title(self) -> str:
        """The task, for messages."""
        return f"task {self._task.id} of pool {self._task.pool!r}"

    async def recorded_steps(self) -> list[StepRecord]:
        """Return the steps that the journal had when the pool was opened."""
        found: list[StepLine] = self._task._extras.steps or []
        return [
            StepRecord(each.name, each.number, each.call, bytes(each.result), each.at, each.ms)
            for each in found
        ]

    async def record_step(self, step: StepRecord) -> None:
        """Write *step* to the journal. Cancelling does not prevent it."""
        journal = self._task._slots.journal
        if journal is None:
            raise PoolClosed(f"pool {self._task.pool!r} is closed; the step was not recorded")
        line = StepLine(
            VERSION,
            self._task._submitted.seq,
            step.name,
            step.number,
            step.call,
            step.started_at_ms,
            step.duration_ms,
            msgspec.Raw(step.result),
        )
        await journal.step_done(line)
