"""A subscription: the records of a topic as they come."""

from __future__ import annotations

import asyncio
from collections import deque

from harn.eventlog.page_reader import PageReader
from harn.graceful_stop import asked, raise_if_asked
from harn.storage import Event, Store
from harn.storage.log import PAGE


class Subscription:
    """Records of a topic as they come, in order, none skipped; ends when closed.

    Cancelling a wait loses nothing: the next one continues where it was. So does a graceful stop.
    """

    def __init__(
        self, store: Store, reader: PageReader, topic: str, start: int | asyncio.Future[int]
    ) -> None:
        self._store = store
        self._reader = reader
        self._topic = topic
        self._start = start
        self._page: deque[Event] = deque()
        self._closed = False

    def __aiter__(self) -> Subscription:
        return self

    async def ready(self) -> int:
        """Wait until it is known which offset this follows, and return it.

        What this process emits later is always seen; what others emit, from this moment on.
        Cancelling leaves nothing behind.
        """
        if not isinstance(self._start, int):
            await asyncio.wait((self._start,))
            self._start = self._start.result()
        return self._start

    async def __anext__(self) -> Event:
        if asked:
            raise_if_asked()
        position = await self.ready()
        while not self._page:
            if self._closed:
                raise StopAsyncIteration
            mark = self._store.growth(self._topic)
            page, after = await self._reader.page(self._topic, position, PAGE)
            self._page.extend(page)
            still, self._start, position = after == position, after, after
            if still:
                await self._store.grown(self._topic, mark)
        return self._page.popleft()

    async def aclose(self) -> None:
        """End the iteration."""
        self._closed = True
