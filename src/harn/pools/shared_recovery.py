"""After an operation on a shared pool has failed: find out what landed, send the rest again.

The store may have carried the operation out although its answer was lost. Then the process holds
claims that it does not know, and the pool has tasks that their submitter believes to be on their
way. The first operation that succeeds again tells of such claims (`PoolClaim.known`). A submit is
sent again after the pool was read up to date, and only if the task was not found there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harn.pools.shared_work import Submit

if TYPE_CHECKING:
    from harn.pools.shared_pool_slots import SharedSlots


class Recovery:
    """What one process has to find out about its part of a pool."""

    __slots__ = ("_is_looking", "_is_unsure", "_items", "_sending", "_slots")

    def __init__(self, slots: SharedSlots) -> None:
        self._slots = slots
        self._items: list[Submit | Callable[[], None]] = []
        self._sending: asyncio.Task[None] | None = None
        self._is_unsure = False
        """Whether the answer to an operation was lost, and with it perhaps a claim."""
        self._is_looking = False

    def known_claims(self) -> frozenset[str] | None:
        """Return the claims that are known here, if the next operation is to tell of others."""
        if not self._is_unsure:
            return None
        self._is_looking = True
        return frozenset(held.claim_id for held in self._slots.here.values())

    def succeeded(self) -> None:
        """Take in that an operation was answered."""
        if self._is_looking:
            self._is_unsure = self._is_looking = False

    def failed(self, items: Sequence[Submit | Callable[[], None]]) -> None:
        """Take in that an operation failed; *items* are submits to send again, or calls to make."""
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
                slots.work.tell(item)
        slots.look()
