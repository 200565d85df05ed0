"""Writing to a store that lasts: what meets while a commit is under way shares the next one.

Two things wait for the next commit: drafts of `emit`, whose callers wait, and records of `record`,
whose callers do not. A record that cannot be written now is tried again until the runtime is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harn.batcher import Batcher, Entry, Landing
from harn.eventlog.audit_records import AuditRecord, Payload, Receipt, to_draft
from harn.storage import Draft, Store, encode_headers
from harn.storage.log import append, head

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.eventlog")

MOST_BUFFERED = 100_000
"""Entries that wait at most; with more, `record` drops and counts."""
RETRY_AFTER = 0.2
"""Seconds until records that the store did not take are tried again."""


class BatchedWriter:
    """Writes the records of a runtime whose store lasts."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self.dropped: int = 0
        self._runtime = runtime
        self._store = store
        self._batcher: Batcher[Draft | AuditRecord] = Batcher(
            runtime.loop,
            self._start,
            self._read_places,
            weigh=_weigh,
            at_once=store.at_once,
            key_of=_topic_of,
            failed=self._retry_later,
        )
        self.emit: Callable[[Draft], asyncio.Future[tuple[int, int]]] = self._batcher.ask_now
        """Append a draft with the next commit; the future gets its id and time."""
        self._recorded: Counter[str] = Counter()
        """How many records of each topic were recorded and are not in the store yet."""
        self._heads: set[asyncio.Future[int]] = set()
        self._has_warned = False
        self._is_waking = False

    async def append(self, drafts: list[Draft]) -> list[tuple[int, int]]:
        """Append *drafts* in a commit of their own; return (id, time) of each."""
        return await self._store.run(lambda: append(drafts))

    def record(
        self,
        topic: str,
        kind: str,
        payload: Payload,
        headers: Mapping[str, Any] | bytes | None,
        at_ms: int | None,
    ) -> None:
        """Let a record wait for the next commit; on any thread."""
        if len(self._batcher.waiting) >= MOST_BUFFERED:
            self.dropped += 1
            return
        at = self._runtime.clock.now_ms() if at_ms is None else at_ms
        self._recorded[topic] += 1
        self._batcher.waiting.append(Entry((topic, kind, payload, headers, at), None))
        if self._is_waking:
            return  # it is still to come, and will find the record, on whatever thread this is
        if not self._runtime.on_loop_thread():
            self._runtime.loop.call_soon_threadsafe(self._batcher.wake)
        else:
            # A turn later than other requests: what the recorded work asks the store for in its
            # next step then shares the commit, which would otherwise wait for one of records alone.
            self._is_waking = True
            self._runtime.loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._is_waking = False
        self._batcher.wake()

    def recorder(self, topic: str) -> Callable[[Receipt], None]:
        """Return a `record` for receipts of *topic*; the headers of a kind are encoded once."""
        headers: dict[str, bytes] = {}

        def note(noted: Receipt) -> None:
            kind = noted.kind
            if kind not in headers:
                headers[kind] = encode_headers(noted.headers)
            self.record(topic, kind, noted, headers[kind], noted.at)

        return note

    async def make_readable(self, topic: str) -> None:
        """Wait until what this process has recorded for *topic* is in the store."""
        while topic in self._recorded:
            self._batcher.wake()
            await self._batcher.next_end()

    async def flush(self) -> None:
        """Wait until everything recorded so far is in the store."""
        while self._recorded:
            self._batcher.wake()
            await self._batcher.next_end()

    async def aclose(self) -> None:
        """Write what was recorded; what cannot be written now is dropped and counted."""
        for _ in range(2):
            while self._batcher.is_busy:
                await self._batcher.next_end()
            if self._batcher.waiting:
                self._batcher.begin()
        if lost := self._recorded.total():
            self.dropped += lost
            logger.warning("%d audit records could not be written", lost)

    def ask_head(self, topic: str) -> asyncio.Future[int]:
        """Return a future of the newest offset of *topic*; emits wait until it is known."""
        answer = self._store.submit(lambda: head(topic))
        self._heads.add(answer)
        self._batcher.is_held = True
        answer.add_done_callback(self._head_known)
        return answer

    def _head_known(self, answer: asyncio.Future[int]) -> None:
        self._heads.discard(answer)
        if not answer.cancelled():
            answer.exception()  # marks it as retrieved: the subscription raises it
        if not self._heads:
            self._batcher.is_held = False
            if self._batcher.waiting:
                self._batcher.begin()

    def _start(self, batch: list[Entry[Draft | AuditRecord]], landing: Landing) -> bool:
        """Append what waits in one operation; a topic is in one operation at a time."""
        drafts: list[Draft] = []
        for entry in batch:
            item = entry.item
            if isinstance(item, tuple):
                made = to_draft(item)
                if made is None:
                    self._count_off(item[0])
                    self.dropped += 1
                    continue
                entry.item = item = made
            drafts.append(item)
        if drafts:
            self._store.submit(lambda: append(drafts), into=landing)
        return bool(drafts)

    def _read_places(
        self, batch: list[Entry[Draft | AuditRecord]], places: list[tuple[int, int]]
    ) -> Sequence[tuple[int, int] | None]:
        self._has_warned = False
        written = [entry for entry in batch if type(entry.item) is Draft]
        recorded = [_topic_of(entry.item) for entry in written if entry.answer is None]
        for topic in set(recorded):
            self._count_off(topic, recorded.count(topic))
        if len(written) == len(batch):
            return places
        found = iter(places)
        return [next(found) if type(entry.item) is Draft else None for entry in batch]

    def _retry_later(self, entries: list[Entry[Draft | AuditRecord]], error: BaseException) -> None:
        """Keep what was only recorded, and try it again a little later."""
        again = [entry for entry in entries if not isinstance(entry.item, tuple)]
        self._batcher.waiting.extendleft(reversed(again))
        if again and not self._has_warned:
            self._has_warned = True
            logger.warning("audit records wait for the store: %s", error)
        if self._batcher.waiting:
            clock = self._runtime.clock
            clock.call_at(clock.monotonic() + RETRY_AFTER, self._batcher.wake, background=True)

    def _count_off(self, topic: str, number: int = 1) -> None:
        self._recorded[topic] -= number
        if self._recorded[topic] <= 0:
            del self._recorded[topic]


def _topic_of(item: Draft | AuditRecord) -> str:
    return item.topic if isinstance(item, Draft) else item[0]


def _weigh(item: Draft | AuditRecord) -> tuple[int, int]:
    return 1, len(item.payload) if type(item) is Draft else 0
