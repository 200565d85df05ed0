"""The steps of a durable call in a shared pool: records of its job, under the process's claim."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.durable_work import StepRecord
from harn.errors import ClaimLost
from harn.storage import Store
from harn.storage.queue import Settlement, settle_claims, stored_jobs
from harn.teardown import retrieve

if TYPE_CHECKING:
    from harn.pools.shared_ends import TaskClaim
    from harn.pools.shared_pool_slots import SharedPoolSlots
    from harn.pools.task import PoolTask


class SharedTaskSteps:
    """One run of a durable call, in the process that holds its slot: its closure's durable work."""

    __slots__ = ("_claim", "_slots", "_store", "_task", "steps", "used_tokens")

    def __init__(
        self, slots: SharedPoolSlots, task: PoolTask[Any], claim: TaskClaim | None
    ) -> None:
        self._slots = slots
        self._store: Store = slots.runtime.service(Store)
        self._task = task
        self._claim = claim
        self.steps: Any = None
        self.used_tokens: int = 0

    @property
    def title(self) -> str:
        """The task, for messages."""
        return f"task {self._task.id} of pool {self._task.pool!r}"

    async def recorded_steps(self) -> list[StepRecord]:
        """Return the steps that earlier runs recorded, in this process or another.

        Cancelling leaves nothing behind.
        """
        recipe = partial(stored_jobs.read_steps, self._slots.queue_name, self._task._extras.ticket)
        return await self._store.run(recipe, write=False)

    async def record_step(self, step: StepRecord) -> None:
        """Record *step* if the slot is still held, in one transaction; else raise `ClaimLost`.

        Cancelling does not prevent it: the next run must know what was done.
        """
        claim, id = self._claim, self._task._extras.ticket
        if claim is None:
            raise ClaimLost(f"the slot of {self.title} is lost")
        item = Settlement("step", id, claim.claim_id, claim.lease, step=step)
        new_id = self._slots.runtime.ids.new
        answer = self._store.submit(partial(settle_claims, self._slots.queue_name, [item], new_id))
        answer.add_done_callback(retrieve)  # a cancelled caller does not read it
        [result] = await asyncio.shield(answer)
        if result.settled != "done":
            why = result.note or "it was settled"
            raise ClaimLost(f"the slot of {self.title} is lost: {why}")
