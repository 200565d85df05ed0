"""Writing to a store in memory, where nothing has to wait.

An emit is carried out at once. What is only recorded stays in a buffer of its topic until the topic
is read or written: a pool notes two records for each task, and most are never read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any

from harn.eventlog.audit_records import AuditRecord, Payload, Receipt, to_draft
from harn.storage import Draft, Operation, Store
from harn.storage.log import append, head, skip_offsets, trim

if TYPE_CHECKING:
    from harn.runtime import Runtime

KEPT = 100_000
"""How many records a topic in memory keeps, in its buffer and in the store each."""


class MemoryWriter:
    """Writes the records of a runtime whose store is in memory."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self.dropped: int = 0
        self._runtime = runtime
        self._store = store
        self._buffers: dict[str, _Buffer] = {}
        self._scheduled = False

    async def emit(self, item: Draft) -> tuple[int, int]:
        """Append *item*; return its id and time."""
        self._absorb(item.topic)
        [(id, at)] = self._store.run_now(lambda: append([item]))
        self._bound(item.topic, id)
        return id, at

    async def append(self, drafts: list[Draft]) -> list[tuple[int, int]]:
        """Append *drafts*, after what was recorded for their topics; return (id, time) of each."""
        for topic in {item.topic for item in drafts}:
            self._absorb(topic)
        return await self._store.run(lambda: append(drafts))

    def record(
        self,
        topic: str,
        kind: str,
        payload: Payload,
        headers: Mapping[str, Any] | None,
        at_ms: int | None,
    ) -> None:
        """Keep a record in the buffer of its topic; on any thread."""
        at = self._runtime.clock.now_ms() if at_ms is None else at_ms
        self._buffer(topic).note((kind, payload, headers, at))

    def write_along(self) -> None:
        """Do nothing: there is no commit to share."""

    def recorder(self, topic: str, turns: int) -> Callable[[Receipt], None]:
        """Return a `record` for receipts of *topic*."""
        return self._buffer(topic).note

    async def make_readable(self, topic: str) -> None:
        """Move what was recorded for *topic* into the store."""
        self._absorb(topic)

    async def flush(self) -> None:
        """Write everything that was recorded."""
        for topic in list(self._buffers):
            self._absorb(topic)

    async def aclose(self) -> None:
        """Do nothing: what is in memory ends with the runtime."""

    def ask_head(self, topic: str) -> asyncio.Future[int]:
        """Return a future of the newest offset of *topic*; it is done."""
        self._absorb(topic)
        return self._store.submit(lambda: head(topic))

    def _buffer(self, topic: str) -> _Buffer:
        buffer = self._buffers.get(topic)
        if buffer is None:
            buffer = self._buffers[topic] = _Buffer(topic, self._store.awaited, self._wake_readers)
        return buffer

    def _wake_readers(self) -> None:
        """Write, in the next turn of the loop, what a reader waits for; on any thread."""
        if self._scheduled:
            return
        self._scheduled = True
        loop = self._runtime.loop
        soon = loop.call_soon if self._runtime.on_loop_thread() else loop.call_soon_threadsafe
        soon(self._absorb_awaited)

    def _absorb_awaited(self) -> None:
        self._scheduled = False
        for topic in list(self._buffers):
            if topic in self._store.awaited:
                self._absorb(topic)

    def _absorb(self, topic: str) -> None:
        """Move what was recorded for *topic* into the store."""
        buffer = self._buffers.get(topic)
        if not buffer:
            return
        items, skipped = buffer.take_all()
        drafts = [item for record in items if (item := to_draft(record)) is not None]
        self.dropped += len(items) - len(drafts)

        def absorb() -> Operation[int]:
            if skipped:
                yield from skip_offsets(topic, skipped)
            if drafts:
                places = yield from append(drafts)
                return places[-1][0]
            return 0

        self._bound(topic, self._store.run_now(absorb))

    def _bound(self, topic: str, newest: int) -> None:
        """Keep *topic* within its bound, a tenth over it at most."""
        if (newest > KEPT and newest % (KEPT // 10) == 0) or newest > 2 * KEPT:
            while self._store.run_now(lambda: trim(topic, keep=KEPT)):
                pass


class _Buffer(deque[Any]):
    """What was recorded for one topic, and how much ever was since it was last emptied.

    Receipts stand in it as they came; other records as (kind, payload, headers, time).
    """

    __slots__ = ("_awaited", "_topic", "_total", "_wake")

    def __init__(self, topic: str, awaited: Container[str], wake: Callable[[], None]) -> None:
        super().__init__(maxlen=KEPT)
        self._topic = topic
        self._awaited = awaited
        self._wake = wake
        self._total = 0

    def note(self, item: Any) -> None:
        """Add *item*; beyond the bound the oldest is dropped."""
        self.append(item)
        self._total += 1
        if self._awaited and self._topic in self._awaited:
            self._wake()

    def take_all(self) -> tuple[list[AuditRecord], int]:
        """Take everything out; return it, and how many records were dropped before it."""
        number = len(self)
        skipped, self._total = self._total - number, 0
        # One by one: another thread may add something meanwhile.
        return [self._as_record(self.popleft()) for _ in range(number)], max(0, skipped)

    def _as_record(self, item: Any) -> AuditRecord:
        if type(item) is tuple:
            return (self._topic, *item)
        return self._topic, item.kind, item, item.headers, item.at
