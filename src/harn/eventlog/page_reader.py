"""Reading a topic in pages, around records that cannot be read."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

from harn.errors import StorageCorrupt
from harn.storage import Damaged, Event, Store
from harn.storage.log import head, read

logger: logging.Logger = logging.getLogger("harn.eventlog")

MOST_DAMAGED = 10_000
"""Unreadable records in a row that are skipped one by one before reading fails."""


class PageReader:
    """Reads pages of topics, and keeps account of the records that it could not read.

    *make_readable* is awaited first: it writes what this process has recorded for the topic.
    """

    def __init__(self, store: Store, make_readable: Callable[[str], Awaitable[None]]) -> None:
        self.damaged: deque[Damaged] = deque(maxlen=100)
        self.damaged_total: int = 0
        self._store = store
        self._make_readable = make_readable

    async def page(self, topic: str, after: int, limit: int) -> tuple[list[Event], int]:
        """Read a page; return it with the offset it reaches to, damaged records included.

        Cancelling leaves nothing behind.
        """
        await self._make_readable(topic)
        try:
            events, damaged = await self._store.run(lambda: read(topic, after, limit), write=False)
        except StorageCorrupt as error:
            return await self._around(topic, after, limit, error)
        for item in damaged:
            self._note_damage(item)
        last = max(
            [after, *(e.id for e in events[-1:]), *(d.id for d in damaged if d.id is not None)]
        )
        return events, last

    async def _around(
        self, topic: str, after: int, limit: int, error: StorageCorrupt
    ) -> tuple[list[Event], int]:
        """Read smaller pages around what is broken; one record that cannot be read is skipped."""
        if limit > 1:
            return await self.page(topic, after, limit // 8 or 1)
        if after >= await self._store.run(lambda: head(topic), write=False):
            raise error
        if self.damaged_total >= MOST_DAMAGED:
            raise error
        self._note_damage(Damaged(topic, after + 1, str(error)))
        return [], after + 1

    def _note_damage(self, item: Damaged) -> None:
        self.damaged_total += 1
        self.damaged.append(item)
        logger.warning("%s: record %s cannot be read: %s", item.topic, item.id, item.reason)
