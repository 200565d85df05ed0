"""Reads that all viewers share: the same thing is read at most once a second.

The first viewer reads; those that come while it reads, or within a second of its beginning, get the
same answer. An action forgets everything, so that its effect is seen at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from harn.clock import Clock
from harn.teardown import retrieve

FRESH_FOR = 1.0
"""Seconds for which an answer is shared."""
MOST_KEPT = 256
"""Answers that are kept; a viewer of something else makes the oldest be forgotten."""


class SharedReads:
    """The latest answers, by what was asked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Future[Any]]] = OrderedDict()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer for *key*, read again if it is older than a second.

        Cancelling leaves the read running, for the other viewers.
        """
        kept = self._kept.get(key)
        if kept is None or self._is_old(*kept):
            reading = asyncio.ensure_future(read())
            reading.add_done_callback(retrieve)  # its viewer may have gone
            self._kept[key] = kept = self._clock.monotonic(), reading
            self._kept.move_to_end(key)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return await asyncio.shield(kept[1])

    def forget(self) -> None:
        """Make the next viewer of anything read again."""
        self._kept.clear()

    def _is_old(self, at: float, reading: asyncio.Future[Any]) -> bool:
        return reading.done() and self._clock.monotonic() - at >= FRESH_FOR
