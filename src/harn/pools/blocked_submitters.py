"""The submitters that wait for a place in a full queue, first come, first served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from harn.pools.self_deadlock import SelfWaits, began_waiting, ended_waiting
from harn.sync import GRANTED, WAITING, Waiter, WaitQueue


class BlockedSubmitters:
    """The wait queue of one pool's submitters.

    Only the loop's thread changes it, so it does not need the guard of other wait queues.
    """

    __slots__ = ("_held", "_loop", "_self_waits", "_waiters", "count")

    def __init__(self, loop: asyncio.AbstractEventLoop, self_waits: SelfWaits) -> None:
        self._loop = loop
        self._self_waits = self_waits
        self._waiters: WaitQueue[Waiter] = WaitQueue()
        self.count: int = 0
        """How many submitters wait, with those for which a place is held."""
        self._held = 0
        """Places that are held for submitters until these have resumed and take them."""

    def join(self, pool: object, places: int = 1) -> Waiter:
        """Return a waiter for *places* at the end of the line; its owner calls `leave` in any case.

        No submitter overtakes the first one, however many places that one waits for.
        """
        waiter = Waiter().wait_as("submit", pool, self._loop)
        waiter.want = places
        self._waiters.append(waiter)
        self.count += 1
        return waiter

    async def wait(self, waiter: Waiter) -> None:
        """Wait until the places of *waiter* are held. Cancelling leaves the rest to `leave`."""
        task = began_waiting(waiter.on, waiter.future)
        try:
            await waiter.future
        finally:
            ended_waiting(task, waiter.on, waiter.future)

    def leave(self, waiter: Waiter) -> None:
        """End the wait of *waiter*, and the hold on its places if they are held."""
        self._self_waits.discard(waiter.future)
        self.count -= 1
        if waiter.withdraw():
            self._held -= waiter.want
        else:
            self._waiters.note_left()

    def hold_places(self, free: int) -> None:
        """Hold its places for each submitter that is next, until *free* places are held."""
        while self._held < free and (waiter := self._waiters.first()) is not None:
            if self._held + waiter.want > free:
                return
            self._waiters.popleft()
            self._held += waiter.want
            waiter.wake(GRANTED)
            # From now on it waits for the loop only, not for the pool.
            self._self_waits.discard(waiter.future)

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """End the wait of each submitter with an exception of its own."""
        for waiter in self._waiters:
            # One that was refused its wait has left, and retrieves no exception.
            if waiter.state == WAITING and not waiter.future.done():
                waiter.future.set_exception(error())
