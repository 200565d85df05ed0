"""How many calls of a route may be under way in this process, first come, first served.

This is not a named semaphore, because that has a fixed number of permits. `llm_rate_limit` may
change the number of call slots while calls are under way.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from harn.sync import GRANTED, Waiter, WaitQueue, park

if TYPE_CHECKING:
    from harn.runtime import Runtime


class CallSlots:
    """The call slots of one route: *taken* of *size*; without a limit while *size* is None.

    Only the thread of the runtime's loop uses them, so they need no lock.
    """

    def __init__(self) -> None:
        self.size: int | None = None
        self.taken: int = 0
        self.waiting: WaitQueue[Waiter] = WaitQueue()

    async def take(self, size: int) -> None:
        """Wait until one of *size* slots is free, and take it. A cancelled wait takes none."""
        self.resize(size)
        if self.taken < size and self.waiting.first() is None:
            self.taken += 1
            return
        waiter = Waiter().wait_as("take", self, asyncio.get_running_loop())
        self.waiting.append(waiter)
        try:
            await park(waiter)
        except BaseException:
            if waiter.withdraw():
                self.release()  # the slot was granted before the cancel arrived
            else:
                self.waiting.note_left()
            raise

    def release(self) -> None:
        """Release a slot; the first waiter gets it."""
        self.taken -= 1
        self._serve()

    def resize(self, size: int | None) -> None:
        """Change the number of slots; calls under way keep theirs."""
        self.size = size
        self._serve()

    def _serve(self) -> None:
        while (first := self.waiting.first()) is not None:
            if self.size is not None and self.taken >= self.size:
                return
            self.waiting.popleft()
            self.taken += 1
            first.wake(GRANTED)


class CallSlotsByRoute:
    """The call slots of every route in a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._routes: dict[str, CallSlots] = {}

    def of(self, route: str) -> CallSlots:
        """Return the slots of *route*."""
        return self._routes.setdefault(route, CallSlots())
