"""The event log as users see it: emit, read, subscribe; and `record`, for audits.

A topic is a sequence of records with offsets 1, 2, 3 ... that never restart. `emit` returns when
its record is durable; emits that meet while a commit is under way share the next one. `record`
never waits and never fails the work it tells about: it is written with the next commit, and a
buffer that is full drops and counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from harn.batcher import Batcher, Entry, Landing
from harn.checks import is_whole
from harn.current import current_runtime
from harn.errors import InvalidOption, StorageCorrupt
from harn.graceful import asked, raise_if_asked
from harn.storage import Damaged, Draft, Event, Operation, Store, check_topic, decode, draft
from harn.storage.log import PAGE, append, head, raise_head, read, trim
from harn.telemetry.metrics import Metrics, Sample

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger = logging.getLogger("harn.eventlog")

BUFFERED = 100_000
"""Records of `record` held back at most, and how many a topic in memory keeps."""
BATCH = 2000
BATCH_BYTES = 16 * 1024 * 1024
RETRY_AFTER = 0.2
MOST_DAMAGED = 10_000
"""Records to step over one by one before a store is called beyond reading."""

Payload = Any | Callable[[], Any]


class Receipt(Protocol):
    """A record that makes its own payload, when it is called; see `EventLog.recorder`.

    It is kept for long and called once: it must say the same whenever that is.
    """

    @property
    def kind(self) -> str:
        """The kind of the record."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Its headers."""

    @property
    def at(self) -> int:
        """When it happened, in wall milliseconds."""

    def __call__(self) -> Any:
        """Return the payload."""


_Record = tuple[str, str, Payload, Mapping[str, Any] | None, int]


class Subscription:
    """Records of a topic as they come, in order, none skipped; ends when closed.

    Cancelling a wait loses nothing: the next one continues where it was. So does a graceful stop.
    """

    def __init__(self, log: EventLog, topic: str, after: int | None) -> None:
        self._log = log
        self._topic = topic
        self._position = after
        self._page: deque[Event] = deque()
        self._closed = False
        self._start = log._head_for(self) if after is None else None

    def __aiter__(self) -> Subscription:
        return self

    async def ready(self) -> int:
        """Wait until it is settled which offset this follows, and return it.

        What this process emits later is always seen; what others do, from this moment on.
        """
        if self._position is None:
            assert self._start is not None
            await asyncio.wait((self._start,))
            self._position = self._start.result()
        return self._position

    async def __anext__(self) -> Event:
        if asked:
            raise_if_asked()
        position = await self.ready()
        while not self._page:
            if self._closed:
                raise StopAsyncIteration
            mark = self._log.store.growth(self._topic)
            page, after = await self._log._page(self._topic, position, PAGE)
            self._page.extend(page)
            still, self._position, position = after == position, after, after
            if still:
                await self._log.store.grown(self._topic, mark)
        return self._page.popleft()

    async def aclose(self) -> None:
        """End the iteration."""
        self._closed = True


class EventLog:
    """A runtime's event log; `current_runtime().event_log`."""

    def __init__(self, runtime: Runtime) -> None:
        self.store = runtime.service(Store)
        self.dropped = 0
        """Records of `record` that were given up: the buffer was full, or it was no JSON."""
        self._waits = False
        self.damaged: deque[Damaged] = deque(maxlen=100)
        """The latest records that reading could not decode."""
        self.damaged_total = 0
        self._runtime = runtime
        self._loop = runtime.loop
        self._in_memory = self.store.is_memory
        self._batcher: Batcher[Draft | _Record] = Batcher(
            runtime.loop,
            self._start,
            self._read_places,
            most=BATCH,
            most_bytes=BATCH_BYTES,
            weigh=_weigh,
            at_once=self.store.at_once,
            key_of=_topic_of,
            failed=self._retry_later,
        )
        """What waits for the next commit: drafts that a caller waits for, and records."""
        self._recorded: Counter[str] = Counter()
        self._heads: set[asyncio.Future[int]] = set()
        self._scheduled = False
        self._buffers: dict[str, _Buffer] = {}
        runtime.service(Metrics).add(self._samples)

    def _samples(self) -> list[Sample]:
        return [
            Sample("harn_event_log_dropped_total", self.dropped),
            Sample("harn_event_log_damaged_total", self.damaged_total),
        ]

    async def emit(
        self, topic: str, kind: str, payload: Any, headers: Mapping[str, Any] | None = None
    ) -> Event:
        """Append a record and return it once it is durable.

        Cancelling before its commit began means it was not written; afterwards it may be.
        """
        self._runtime.check_here()
        self._runtime.warn_if_nothing_is_kept("event_log_emit")
        item = draft(topic, kind, payload, headers)
        if self._in_memory:
            self._absorb(topic)
            [(id, at)] = self.store.run_now(lambda: append([item]))
            self._bound(topic, id)
        else:
            id, at = await self._batcher.ask_now(item)
        told = decode(item.headers) if headers else {}
        return Event(id, topic, kind, decode(item.payload), told, at)

    def record(
        self,
        topic: str,
        kind: str,
        payload: Payload,
        headers: Mapping[str, Any] | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Note a record without waiting; *payload* may be a function that makes it later.

        Who has just asked the clock passes the answer in *at_ms*. The record is written in order
        with the next commit, before this process reads the topic, and at the latest when the
        runtime is left. It never raises and never blocks.
        """
        if self._in_memory:
            if at_ms is None:
                at_ms = self._runtime.clock.now_ms()
            self._buffer(topic).note((kind, payload, headers, at_ms))
            return
        if len(self._batcher.waiting) >= BUFFERED:
            self.dropped += 1
            return
        at = self._runtime.clock.now_ms() if at_ms is None else at_ms
        self._recorded[topic] += 1
        self._batcher.waiting.append(Entry((topic, kind, payload, headers, at), None))
        self._schedule()

    def recorder(self, topic: str) -> Callable[[Receipt], None]:
        """Return a `record` for receipts of *topic*, for who writes some with every task."""
        if self._in_memory:
            return self._buffer(topic).note
        return lambda noted: self.record(topic, noted.kind, noted, noted.headers, noted.at)

    def _buffer(self, topic: str) -> _Buffer:
        buffer = self._buffers.get(topic)
        if buffer is None:
            buffer = self._buffers[topic] = _Buffer(topic, self.store.awaited, self._schedule)
        return buffer

    async def append(self, drafts: list[Draft]) -> list[tuple[int, int]]:
        """Append *drafts* to their topics, all or none; return (id, time) of each."""
        if not drafts:
            return []
        if self._in_memory:
            for topic in {item.topic for item in drafts}:
                self._absorb(topic)
        return await self.store.run(lambda: append(drafts))

    async def read(self, topic: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return the records of *topic* after offset *after*, oldest first, at most *limit*."""
        _check_range(after, limit)
        found: list[Event] = []
        async for page in self.pages(topic, after, limit):
            found.extend(page)
        return found

    async def stream(self, topic: str, after: int = 0) -> AsyncIterator[Event]:
        """Yield what `read` would return, page by page, so that memory stays small."""
        async for page in self.pages(topic, after, None):
            for event in page:
                yield event

    def subscribe(self, topic: str, after: int | None = None) -> Subscription:
        """Follow *topic* after offset *after*, or from now on."""
        if after is not None:
            _check_range(after, None)
        return Subscription(self, check_topic(topic), after)

    async def head(self, topic: str) -> int:
        """Return the newest offset of *topic*, 0 before its first record."""
        await self._settle(check_topic(topic))
        return await self.store.run(lambda: head(topic), write=False)

    async def trim(
        self,
        topic: str,
        *,
        keep: int | None = None,
        before_ms: int | None = None,
        force: bool = False,
    ) -> int:
        """Remove records beyond the newest *keep* or older than *before_ms*; return how many.

        What is not settled, or not read by a consumer with a stored cursor, stays; *force*
        removes it too. Cancelling leaves a part removed, oldest first.
        """
        for option, value in (("keep", keep), ("before_ms", before_ms)):
            if value is not None and not _is_count(value):
                raise InvalidOption(option, value, "0 or a positive integer, or None")
        await self._settle(check_topic(topic))
        total = 0
        while gone := await self.store.run(
            lambda: trim(
                topic,
                keep=keep,
                before_ms=before_ms,
                force=force,
                dedupe_ms=self._runtime.settings.dedupe_window_ms,
            )
        ):
            total += gone
        return total

    async def flush(self) -> None:
        """Wait until everything recorded so far is in the store."""
        if self._in_memory:
            for topic in list(self._buffers):
                self._absorb(topic)
            return
        while self._recorded:
            self._batcher.wake()
            await self._batcher.next_end()

    async def aclose(self) -> None:
        """Write what was recorded; what cannot be written now is dropped and counted."""
        if self._in_memory:
            return
        for _ in range(2):
            while self._batcher.is_busy:
                await self._batcher.next_end()
            if self._batcher.waiting:
                self._batcher.begin()
        if self._recorded:
            self.dropped += sum(self._recorded.values())
            logger.warning("%d audit records could not be written", sum(self._recorded.values()))

    # -- the shared commit -------------------------------------------------------------------

    def _schedule(self) -> None:
        """See to it that what was recorded is written; on any thread."""
        if self._in_memory:
            if not self._scheduled:
                self._scheduled = True
                self._soon(self._absorb_awaited)
        elif self._runtime.on_loop_thread():
            self._batcher.wake()
        else:
            self._loop.call_soon_threadsafe(self._batcher.wake)

    def _soon(self, call: Callable[[], None]) -> None:
        if self._runtime.on_loop_thread():
            self._loop.call_soon(call)
        else:
            self._loop.call_soon_threadsafe(call)

    def _absorb_awaited(self) -> None:
        self._scheduled = False
        for topic in list(self._buffers):
            if topic in self.store.awaited:
                self._absorb(topic)

    def _start(self, batch: list[Entry[Draft | _Record]], landing: Landing) -> bool:
        """Append what waits in one operation; a topic is in one operation at a time."""
        drafts: list[Draft] = []
        for entry in batch:
            item = entry.item
            if isinstance(item, tuple):
                made = _made(item)
                if made is None:
                    self._forget(item[0])
                    self.dropped += 1
                    continue
                entry.item = item = made
            drafts.append(item)
        if drafts:
            self.store.submit(lambda: append(drafts), into=landing)
        return bool(drafts)

    def _read_places(
        self, batch: list[Entry[Draft | _Record]], places: list[tuple[int, int]]
    ) -> list[tuple[int, int] | None]:
        self._waits = False
        found = iter(places)
        results: list[tuple[int, int] | None] = []
        for entry in batch:
            is_written = not isinstance(entry.item, tuple)
            if entry.answer is None and is_written:
                self._forget(_topic_of(entry.item))
            results.append(next(found) if is_written else None)
        return results

    def _retry_later(self, entries: list[Entry[Draft | _Record]], error: BaseException) -> None:
        """Keep what was only recorded, and try it again a little later."""
        again = [entry for entry in entries if not isinstance(entry.item, tuple)]
        self._batcher.waiting.extendleft(reversed(again))
        if again and not self._waits:
            self._waits = True
            logger.warning("audit records wait for the store: %s", error)
        if self._batcher.waiting:
            clock = self._runtime.clock
            clock.call_at(clock.monotonic() + RETRY_AFTER, self._schedule, background=True)

    def _forget(self, topic: str) -> None:
        self._recorded[topic] -= 1
        if self._recorded[topic] <= 0:
            del self._recorded[topic]

    # -- reading -----------------------------------------------------------------------------

    async def pages(self, topic: str, after: int, limit: int | None) -> AsyncIterator[list[Event]]:
        """Yield what `read` would return, in pages of a few hundred records or some megabytes."""
        check_topic(topic)
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page, last = await self._page(topic, after, size)
            if last == after:
                return
            after = last
            if left is not None:
                left -= len(page)
            yield page

    async def _page(self, topic: str, after: int, limit: int) -> tuple[list[Event], int]:
        """Read a page; return it with the offset it reaches to, damaged records included."""
        await self._settle(topic)
        try:
            events, damaged = await self.store.run(lambda: read(topic, after, limit), write=False)
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
            return await self._page(topic, after, limit // 8 or 1)
        if after >= await self.store.run(lambda: head(topic), write=False):
            raise error
        if self.damaged_total >= MOST_DAMAGED:
            raise error
        self._note_damage(Damaged(topic, after + 1, str(error)))
        return [], after + 1

    def _note_damage(self, item: Damaged) -> None:
        self.damaged_total += 1
        self.damaged.append(item)
        logger.warning("%s: record %s cannot be read: %s", item.topic, item.id, item.reason)

    async def _settle(self, topic: str) -> None:
        """Make what this process has recorded readable."""
        if self._in_memory:
            self._absorb(topic)
        while topic in self._recorded:
            self._batcher.wake()
            await self._batcher.next_end()

    def _head_for(self, subscription: Subscription) -> asyncio.Future[int]:
        """Ask where the topic ends now; emits wait until that is known."""
        topic = subscription._topic
        if self._in_memory:
            self._absorb(topic)
        asked = self.store.submit(lambda: head(topic))
        self._heads.add(asked)
        self._batcher.is_held = True
        asked.add_done_callback(self._head_known)
        return asked

    def _head_known(self, asked: asyncio.Future[int]) -> None:
        self._heads.discard(asked)
        if not asked.cancelled():
            asked.exception()  # the iteration raises it; no other place must
        if not self._heads:
            self._batcher.is_held = False
            if self._batcher.waiting:
                self._batcher.begin()

    # -- memory ------------------------------------------------------------------------------

    def _absorb(self, topic: str) -> None:
        """Move what was recorded in memory into the store."""
        buffer = self._buffers.get(topic)
        if not buffer:
            return
        items, skipped = buffer.emptied()
        drafts = [made for item in items if (made := _made(item)) is not None]
        self.dropped += len(items) - len(drafts)

        def absorb() -> Operation[int]:
            if skipped:
                yield from raise_head(topic, skipped)
            if drafts:
                places = yield from append(drafts)
                return places[-1][0]
            return 0

        self._bound(topic, self.store.run_now(absorb))

    def _bound(self, topic: str, newest: int) -> None:
        """Keep a topic in memory within its bound, a tenth over it at most."""
        if (newest > BUFFERED and newest % (BUFFERED // 10) == 0) or newest > 2 * BUFFERED:
            while self.store.run_now(lambda: trim(topic, keep=BUFFERED)):
                pass


class _Buffer(deque[Any]):
    """What was recorded for one topic in memory, and how much ever was since the last read.

    Receipts stand in it as they came; other records as (kind, payload, headers, time).
    """

    __slots__ = ("_awaited", "_topic", "_total", "_wake")

    def __init__(self, topic: str, awaited: Container[str], wake: Callable[[], None]) -> None:
        super().__init__(maxlen=BUFFERED)
        self._topic = topic
        self._awaited = awaited
        self._wake = wake
        self._total = 0

    def note(self, item: Any) -> None:
        """Add *item*; beyond the bound the oldest goes."""
        self.append(item)
        self._total += 1
        if self._topic in self._awaited:
            self._wake()

    def emptied(self) -> tuple[list[_Record], int]:
        """Take everything out; return it, and how many records had gone before it."""
        number = len(self)
        skipped, self._total = self._total - number, 0
        # One by one: another thread may be noting something meanwhile.
        return [self._spelled_out(self.popleft()) for _ in range(number)], max(0, skipped)

    def _spelled_out(self, item: Any) -> _Record:
        if type(item) is tuple:
            return (self._topic, *item)
        return self._topic, item.kind, item, item.headers, item.at


def _topic_of(item: Draft | _Record) -> str:
    return item.topic if isinstance(item, Draft) else item[0]


def _weigh(item: Draft | _Record) -> tuple[int, int]:
    return 1, len(item.payload) if isinstance(item, Draft) else 0


def _made(record: _Record) -> Draft | None:
    """Make a draft of what was recorded, or None if it cannot be."""
    topic, kind, payload, headers, at = record
    try:
        made = draft(topic, kind, payload() if callable(payload) else payload, headers)
    except Exception as error:
        logger.warning("an audit record for %s was dropped: %s", topic, error)
        return None
    return Draft(made.topic, made.kind, made.payload, made.headers, at)


def _check_range(after: int, limit: int | None) -> None:
    if not _is_count(after):
        raise InvalidOption("after", after, "an offset: 0 or a positive integer")
    if limit is not None and not _is_count(limit):
        raise InvalidOption("limit", limit, "0 or a positive integer, or None for all")


def _is_count(value: object) -> bool:
    return is_whole(value) and 0 <= value < 1 << 62


async def event_log_emit(
    topic: str, kind: str, payload: Any, headers: Mapping[str, Any] | None = None
) -> Event:
    """Append a record to *topic* of the current runtime's log; it is durable on return.

    Cancelling before its commit began means it was not written; afterwards it may be.

    >>> async def main() -> int:
    ...     event = await event_log_emit("news", "greeting", {"text": "hello"})
    ...     return event.id
    >>> asyncio.run(main())
    1
    """
    return await current_runtime().event_log.emit(topic, kind, payload, headers)


async def event_log_read(topic: str, after: int = 0, limit: int | None = None) -> list[Event]:
    """Return the records of *topic* after offset *after*, oldest first, at most *limit*.

    Cancelling leaves nothing behind.

    >>> async def main() -> list[int]:
    ...     for n in range(3):
    ...         await event_log_emit("news", "count", n)
    ...     return [event.payload for event in await event_log_read("news", after=1)]
    >>> asyncio.run(main())
    [1, 2]
    """
    return await current_runtime().event_log.read(topic, after, limit)


def event_log_subscribe(topic: str, after: int | None = None) -> Subscription:
    """Follow *topic* after offset *after*; None means from now on.

    Cancelling a wait loses nothing: the next one continues where it was.

    >>> async def main() -> str:
    ...     news = event_log_subscribe("news")
    ...     await event_log_emit("news", "greeting", "hello")
    ...     async for event in news:
    ...         return event.payload
    >>> asyncio.run(main())
    'hello'
    """
    return current_runtime().event_log.subscribe(topic, after)
