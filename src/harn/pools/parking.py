"""The line of submitters who wait for a place in a full queue: first come, first served.

A place that comes free is held for the first in line until they take it; nobody who comes later
can slip in between. One who is cancelled, also in the moment between, passes the place on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from harn.clock import resolve


class ParkingLine:
    """Parked submitters, and how many of them a place is being held for."""

    __slots__ = ("anyone", "held")

    def __init__(self) -> None:
        self.anyone: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        """Those in line, first come first; empty when nobody waits."""
        self.held = 0

    def __len__(self) -> int:
        return len(self.anyone) + self.held

    def join(self, waiter: asyncio.Future[None]) -> None:
        """Stand at the end of the line."""
        self.anyone[waiter] = None

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """Leave the line, or give up the place that was held."""
        if waiter in self.anyone:
            del self.anyone[waiter]
        else:
            self.held -= 1

    def next(self) -> asyncio.Future[None] | None:
        """Hold a place for the first in line and wake them."""
        if not self.anyone:
            return None
        waiter, _ = self.anyone.popitem(last=False)
        self.held += 1
        resolve(waiter)
        return waiter

    def dismiss(self, error: Callable[[], Exception]) -> None:
        """Send everyone away, each with an *error* of their own."""
        for waiter in self.anyone:
            if not waiter.done():
                waiter.set_exception(error())
