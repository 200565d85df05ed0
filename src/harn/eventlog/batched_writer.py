"""Writing to a store that lasts: what meets while a commit is under way shares the next one.

Two things wait for the next commit: drafts of `emit`, whose callers wait, and records of `record`,
whose callers do not. A record that cannot be written now is tried again until the runtime is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.batcher import MOST_ENTRIES, Batcher, Entry, Landing
from harn.eventlog.audit_records import AuditRecord, Payload, Receipt, Receipts, to_draft, to_drafts
from harn.storage import Draft, Store, encode_headers
from harn.storage.log import append, head

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.eventlog")

Item = Draft | AuditRecord | Receipts | list[Draft]
"""What waits for a commit; receipts become a list of drafts when it begins."""

MOST_BUFFERED = 100_000
"""Entries that wait at most, and receipts of a topic; with more, `record` drops and counts."""
RETRY_AFTER = 0.2
"""Seconds until records that the store did not take are tried again."""


class BatchedWriter:
    """Writes the records of a runtime whose store lasts."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self.dropped: int = 0
        self._runtime = runtime
        self._store = store
        self._batcher: Batcher[Item] = Batcher(
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
        self._last: Entry[Item] | None = None
        """The last receipts; more join them as long as nothing else waits behind them."""
        self._heads: set[asyncio.Future[int]] = set()
        self._has_warned = False
        self._is_waking = False

    async def append(self, drafts: list[Draft]) -> list[tuple[int, int]]:
        """Append *drafts* in a commit of their own; return (id, time) of each.

        Cancelling before the operation began means that nothing was written; afterwards it may be.
        """
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
        if not self._is_waking:  # else it is still to come, and will find the record
            if self._runtime.on_loop_thread():
                self._wake_after(1)
            else:
                self._runtime.loop.call_soon_threadsafe(self._batcher.wake)

    def recorder(self, topic: str, turns: int) -> Callable[[Receipt], None]:
        """Return a `record` for receipts of *topic*, which wait so many turns of the loop.

        The headers of a kind are encoded once. Receipts that follow each other are one entry.
        """
        headers: dict[str, bytes] = {}
        runtime, recorded, waiting = self._runtime, self._recorded, self._batcher.waiting

        def note(noted: Receipt) -> None:
            kind = noted.kind
            if kind not in headers:
                headers[kind] = encode_headers(noted.headers)
            if not runtime.on_loop_thread():
                self.record(topic, kind, noted, headers[kind], noted.at)
                return
            count = recorded.get(topic, 0)
            if count >= MOST_BUFFERED:
                self.dropped += 1
                return
            recorded[topic] = count + 1
            last = self._last
            if last is None or not waiting or waiting[-1] is not last or not _joins(last, headers):
                last = self._last = Entry(Receipts(topic, headers, []), None)
                waiting.append(last)
            last.item.noted.append(noted)  # type: ignore[union-attr]  # `_joins` has looked
            if not self._is_waking:
                self._wake_after(turns)

        return note

    def write_along(self) -> None:
        """Write what waits now, if nothing is under way: another request follows at once."""
        if self._batcher.waiting:
            self._batcher.begin()

    def _wake_after(self, turns: int) -> None:
        # At least a turn later than other requests: what the recorded work asks the store for in
        # its next step then shares the commit, which would otherwise wait for one of records alone.
        self._is_waking = True
        self._runtime.loop.call_soon(self._wake, turns - 1)

    def _wake(self, turns: int) -> None:
        if turns > 0:
            self._runtime.loop.call_soon(self._wake, turns - 1)
            return
        self._is_waking = False
        if self._batcher.waiting:
            self._batcher.wake()

    async def make_readable(self, topic: str) -> None:
        """Wait until what this process has recorded for *topic* is in the store.

        Cancelling leaves the records to be written all the same.
        """
        while topic in self._recorded:
            self._batcher.wake()
            await self._batcher.next_end()

    async def flush(self) -> None:
        """Wait until everything recorded so far is in the store.

        Cancelling leaves the records to be written all the same.
        """
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

    def _start(self, batch: list[Entry[Item]], landing: Landing) -> bool:
        """Append what waits in one operation; a topic is in one operation at a time."""
        drafts: list[Draft] = []
        is_awaited = False
        for entry in batch:
            item = entry.item
            if type(item) is Draft:
                drafts.append(item)
                is_awaited = is_awaited or entry.answer is not None
            elif type(item) is Receipts:
                entry.item = made = to_drafts(item)
                self._give_up(item.topic, len(item.noted) - len(made))
                drafts += made
            elif (found := to_draft(item)) is not None:  # type: ignore[arg-type]  # a record
                entry.item = found
                drafts.append(found)
            else:
                self._give_up(_topic_of(item), 1)
        if drafts:
            self._store.submit(partial(append, drafts, places=is_awaited), into=landing)
        return bool(drafts)

    def _give_up(self, topic: str, number: int) -> None:
        """Count records that cannot be written."""
        if number:
            self._count_off(topic, number)
            self.dropped += number

    def _read_places(
        self, batch: list[Entry[Item]], places: list[tuple[int, int]]
    ) -> Sequence[tuple[int, int] | None]:
        self._has_warned = False
        found = iter(places)
        results: list[tuple[int, int] | None] = []
        recorded: Counter[str] = Counter()
        for entry in batch:
            item, place = entry.item, None
            if type(item) is Draft:
                place = next(found, None)
                if entry.answer is None:
                    recorded[item.topic] += 1
            elif type(item) is list and item:
                recorded[item[0].topic] += len(item)
                for _ in item:
                    next(found, None)
            results.append(place)
        for topic, number in recorded.items():
            self._count_off(topic, number)
        return results

    def _retry_later(self, entries: list[Entry[Item]], error: BaseException) -> None:
        """Keep what was only recorded, and try it again a little later."""
        again: list[Entry[Item]] = []
        for entry in entries:
            if type(entry.item) is list:
                again += [Entry(item, None) for item in entry.item]
            elif type(entry.item) is Draft:
                again.append(entry)
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


def _joins(last: Entry[Item], headers: dict[str, bytes]) -> bool:
    """Tell whether a receipt of the recorder with these *headers* can join those of *last*."""
    item = last.item
    return type(item) is Receipts and item.headers is headers and len(item.noted) < MOST_ENTRIES


def _topic_of(item: Item) -> str:
    if isinstance(item, tuple):
        return item[0]
    return item[0].topic if isinstance(item, list) else item.topic


def _weigh(item: Item) -> tuple[int, int]:
    if type(item) is Draft:
        return 1, len(item.payload)
    return (len(item.noted) if type(item) is Receipts else 1), 0
