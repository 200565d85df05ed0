"""After a lost answer or a lost lease: find out what landed, send the rest again.

The store may have carried the operation out although its answer was lost. Then the process holds
claims that it does not know, and the pool has tasks that their submitter believes to be on their
way. The first operation that succeeds again reports such claims (`PoolClaim.known`). A submit is
sent again after the pool was read up to date, and only if the task was not found there.

Claims under a lost lease are ended by another process, or by this one with its first operation
under a new lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harn.pools.shared_work import Submit
from harn.pools.worker import Worker

if TYPE_CHECKING:
    from harn.pools.shared_pool_slots import SharedPoolSlots
    from harn.pools.task import PoolTask


class SharedRecovery:
    """What one process has to find out about its part of a pool."""

    __slots__ = ("_is_looking", "_is_unsure", "_items", "_sending", "_slots", "left", "lost")

    def __init__(self, slots: SharedPoolSlots) -> None:
        self._slots = slots
        self._items: list[Submit | Callable[[], None]] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_unsure = False
        """Whether the answer to an operation was lost, and with it perhaps a claim."""
        self._is_looking = False
        self.left: list[str] = []
        """Leases that were lost, and may still have claims in the store."""
        self.lost: dict[PoolTask, Worker] = {}
        """Tasks whose claim was lost and whose run has not ended yet."""

    def known_claims(self) -> frozenset[str] | None:
        """Return the claims that are known here, if the next operation is to report others."""
        if not self._is_unsure:
            return None
        self._is_looking = True
        return frozenset(claim.claim_id for claim in self._slots.here.values())

    def succeeded(self, left: Sequence[str]) -> None:
        """Note that an operation was answered; it ended the claims under the leases *left*."""
        if left:
            self.left = [lease for lease in self.left if lease not in left]
        if self._is_looking:
            self._is_unsure = self._is_looking = False

    def failed(self, items: Sequence[Submit | Callable[[], None]]) -> None:
        """Note that an operation failed; *items* are submits to send again, or calls to make."""
        self._is_unsure, self._is_looking = True, False
        self._items += items
        if self._sending is None:
            runtime = self._slots.runtime
            self._sending = runtime.loop.create_task(self._send_again())
            runtime.own(self._sending)

    async def _send_again(self) -> None:
        slots = self._slots
        assert slots.follower is not None
        try:
            await slots.follower.read_until_done()
        finally:
            self._sending = None
        items, self._items = self._items, []
        for item in items:
            if not isinstance(item, Submit):
                item()
            elif item.tasks[0].id in slots.unplaced:
                slots.work.add(item)
        slots.start_more()

    # After the lease of this process was lost.

    def lose_all(self, lease: str) -> None:
        """Cancel what runs here: the *lease* under which it has its slots is lost."""
        self._slots.work.hold(True)
        self.left.append(lease)
        for task in list(self._slots.here):
            self.lose(task)

    def lose(self, task: PoolTask) -> None:
        """Cancel *task*, which runs here and whose claim is lost: the store says how it ends."""
        del self._slots.here[task]
        worker = task._place
        if not isinstance(worker, Worker):
            if task in self._slots.unbegun:
                self._slots.unbegun.remove(task)
            return
        task._place = worker.context  # for its next run, if that is here
        if worker.begun is task:
            self.lost[task] = worker
            worker.aio.add_done_callback(lambda _: self.lost.pop(task, None))
            worker.stop()
        else:
            worker.task = None

    def rejoin(self) -> None:
        """Take part again: there is a new lease."""
        slots = self._slots
        assert slots.follower is not None
        slots.work.hold(False)
        slots.start_more()
        slots.follower.catch_up_soon()  # records of an end may be trimmed meanwhile
