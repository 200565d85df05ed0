"""How many calls of a route may be under way in this process, first come, first served.

Unlike a named semaphore its size may change while calls are under way: `llm_rate_limit` does that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from harn.clock import resolve
from harn.graceful import parked

if TYPE_CHECKING:
    from harn.runtime import Runtime


class Seats:
    """Seats of one route."""

    def __init__(self) -> None:
        self.size: int | None = None
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, size: int) -> None:
        """Take a seat, waiting until one of *size* is free. Cancelling takes none."""
        self.size = size
        self._seat_next()
        if self.taken < size and not self._waiting:
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            with parked(turn):
                await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give()
            raise

    def give(self) -> None:
        """Give a seat back."""
        self.taken -= 1
        self._seat_next()

    def resize(self, size: int | None) -> None:
        """Have another number of seats; nobody is asked to leave."""
        self.size = size
        self._seat_next()

    def _seat_next(self) -> None:
        while self._waiting and (self.size is None or self.taken < self.size):
            turn = self._waiting.popleft()
            if not turn.done():
                self.taken += 1
                resolve(turn)


class SeatsByRoute:
    """The seats of every route in a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._routes: dict[str, Seats] = {}

    def of(self, route: str) -> Seats:
        """Return the seats of *route*."""
        return self._routes.setdefault(route, Seats())
