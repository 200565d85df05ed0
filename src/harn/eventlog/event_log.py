"""EventLog: what a runtime's event log can do."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harn.eventlog.audit_records import Payload, Receipt
from harn.eventlog.batched_writer import BatchedWriter
from harn.eventlog.memory_writer import MemoryWriter
from harn.eventlog.page_reader import PageReader
from harn.eventlog.subscription import Subscription
from harn.option_checks import whole_number
from harn.storage import Damaged, Draft, Event, Store, check_topic, decode, draft
from harn.storage.log import PAGE, head, trim
from harn.telemetry.metrics import Metrics, Sample

if TYPE_CHECKING:
    from harn.runtime import Runtime

LARGEST_OFFSET = 2**62 - 1

SEAMS = {
    "aclose": "called when the runtime is left",
    "append": "several records, all or none",
    "flush": "waits for what was recorded",
    "head": "the newest offset of a topic",
    "pages": "a topic in pages",
    "recorder": "a `record` for code that writes many",
    "store": "the store that keeps it",
    "stream": "a topic record by record",
    "write_along": "writes what was recorded with the caller's own request",
}
"""Attributes of an `EventLog` that the rooms of harn use, and what each is for."""


class EventLog:
    """A runtime's event log; `current_runtime().event_log`.

    Every name without an underscore that `dir` leaves out is for the rooms of harn (`SEAMS`).
    """

    def __init__(self, runtime: Runtime) -> None:
        self.store: Store = runtime.service(Store)
        self._runtime = runtime
        writer = MemoryWriter if self.store.is_memory else BatchedWriter
        self._writer: MemoryWriter | BatchedWriter = writer(runtime, self.store)
        self._reader = PageReader(self.store, self._writer.make_readable)
        runtime.service(Metrics).add(self._samples)

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in SEAMS]

    def _samples(self) -> list[Sample]:
        return [
            Sample("harn_event_log_dropped_total", self.dropped),
            Sample("harn_event_log_damaged_total", self.damaged_total),
        ]

    @property
    def dropped(self) -> int:
        """Records of `record` that were dropped: the buffer was full, or they were not JSON."""
        return self._writer.dropped

    @property
    def damaged(self) -> deque[Damaged]:
        """The latest records that reading could not decode."""
        return self._reader.damaged

    @property
    def damaged_total(self) -> int:
        """How many records reading could not decode."""
        return self._reader.damaged_total

    async def emit(
        self, topic: str, kind: str, payload: Any, headers: Mapping[str, Any] | None = None
    ) -> Event:
        """Append a record and return it once it is durable.

        Cancelling before its commit began means it was not written; afterwards it may be.
        """
        runtime = self._runtime
        runtime.check_here()
        if runtime._keeps_nothing:
            runtime.warn_if_nothing_is_kept("event_log_emit")
        item = draft(topic, kind, payload, headers)
        id, at = await self._writer.emit(item)
        # Decoded, so that it equals what a reader gets.
        written = decode(item.headers) if headers else {}
        return Event(id, topic, kind, decode(item.payload), written, at)

    def record(
        self,
        topic: str,
        kind: str,
        payload: Payload,
        headers: Mapping[str, Any] | None = None,
        at_ms: int | None = None,
    ) -> None:
        """Note a record without waiting; *payload* may be a function that makes it later.

        A caller that has just asked the clock passes the time in *at_ms*. The record is written in
        order with the next commit, before this process reads the topic, and at the latest when the
        runtime is left. It never raises and never blocks.
        """
        self._writer.record(topic, kind, payload, headers, at_ms)

    def recorder(self, topic: str, turns: int = 1) -> Callable[[Receipt], None]:
        """Return a `record` for receipts of *topic*, for a caller that writes many.

        They wait so many turns of the loop for a `write_along`.
        """
        return self._writer.recorder(topic, turns)

    def write_along(self) -> None:
        """Write what was recorded now: the caller's own request to the store follows at once.

        On SQLite and files the two share a commit.
        """
        self._writer.write_along()

    async def append(self, drafts: list[Draft]) -> list[tuple[int, int]]:
        """Append *drafts* to their topics, all or none; return (id, time) of each.

        Cancelling before the operation began means that nothing was written; afterwards it may be.
        """
        return await self._writer.append(drafts) if drafts else []

    async def read(self, topic: str, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return the records of *topic* after offset *after*, oldest first, at most *limit*.

        Cancelling leaves nothing behind.
        """
        _check_offset(after)
        if limit is not None:
            _check_count("limit", limit, "0 or a positive integer, or None for all")
        found: list[Event] = []
        async for page in self.pages(topic, after, limit):
            found.extend(page)
        return found

    async def stream(self, topic: str, after: int = 0) -> AsyncIterator[Event]:
        """Yield what `read` would return, page by page, so that memory stays small.

        Cancelling leaves nothing behind.
        """
        async for page in self.pages(topic, after, None):
            for event in page:
                yield event

    async def pages(self, topic: str, after: int, limit: int | None) -> AsyncIterator[list[Event]]:
        """Yield what `read` would return, in pages of a few hundred records or some megabytes.

        Cancelling leaves nothing behind.
        """
        check_topic(topic)
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page, last = await self._reader.page(topic, after, size)
            if last == after:
                return
            after = last
            if left is not None:
                left -= len(page)
            yield page

    def subscribe(self, topic: str, after: int | None = None) -> Subscription:
        """Follow *topic* after offset *after*, or from now on."""
        if after is not None:
            _check_offset(after)
        check_topic(topic)
        start = self._writer.ask_head(topic) if after is None else after
        return Subscription(self.store, self._reader, topic, start)

    async def head(self, topic: str) -> int:
        """Return the newest offset of *topic*, 0 before its first record.

        Cancelling leaves nothing behind.
        """
        await self._writer.make_readable(check_topic(topic))
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
            if value is not None:
                _check_count(option, value, "0 or a positive integer, or None")
        await self._writer.make_readable(check_topic(topic))
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
        """Wait until everything recorded so far is in the store.

        Cancelling leaves the records to be written all the same.
        """
        await self._writer.flush()

    async def aclose(self) -> None:
        """Write what was recorded; what cannot be written now is dropped and counted.

        Cancelling ends the wait; what was not handed to the store by then is lost.
        """
        await self._writer.aclose()


def _check_offset(after: int) -> None:
    _check_count("after", after, "an offset: 0 or a positive integer")


def _check_count(option: str, value: int, wanted: str) -> None:
    whole_number(option, value, least=0, most=LARGEST_OFFSET, wanted=wanted)
