"""Export a log as JSON lines, and import it into another store with the same offsets.

    {"harn_export":1,"topics":{"news":2}}
    {"topic":"news","id":1,"kind":"greeting","at":1767225600000,"headers":{},"payload":"hi"}
    {"cursor":["news","reader",1]}

Records of all topics are in the order they were appended, so the indexes can be folded from them.
The export ends at the offsets of its start: later records are not included.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec

from harn.errors import StorageCorrupt, StorageError, StorageVersion
from harn.escaping import in_json
from harn.storage.codec import MAX_PAYLOAD, check_kind, check_topic, encode, encode_headers
from harn.storage.contract import TAKE_OFFSETS, Damaged
from harn.storage.log.events import (
    COLUMNS,
    PAGE,
    PAGE_BYTES,
    event_of,
    list_topics,
    move_cursor,
    records,
)
from harn.storage.operations import Operation, Row, Rows, ask, ask_many
from harn.storage.store import Store

VERSION = 1
MOST_IMPORTED = 2 * MAX_PAYLOAD
"""Bytes of a payload: a record that harn writes may hold a value of `MAX_PAYLOAD` and more."""
MOST_DAMAGED = 1000
"""The most damaged records that an export leaves out."""

T = TypeVar("T")
Offset = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Header(msgspec.Struct):
    """The first line of an export."""

    harn_export: int = 0
    topics: dict[str, Offset] = {}


class _Record(msgspec.Struct):
    """The line of a record."""

    topic: str
    id: Offset
    kind: str
    at: Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
    headers: dict[str, Any]
    payload: Any


class _Cursor(msgspec.Struct):
    """The line of a consumer's cursor."""

    cursor: tuple[str, str, Offset]


async def export(store: Store, damaged: list[Damaged] | None = None) -> AsyncIterator[bytes]:
    """Yield the lines of an export of *store*, the header first.

    A record that cannot be read raises StorageCorrupt. With *damaged*, it is added to that list
    and left out.
    """
    heads = await store.run(list_topics, write=False)
    yield _shown(msgspec.json.encode({"harn_export": VERSION, "topics": heads}))
    after = dict.fromkeys(heads, 0)
    pages: dict[str, list[Row]] = {}
    while after or pages:
        for topic in [name for name in after if name not in pages]:
            rows = await _page(store, topic, after[topic], heads[topic], damaged)
            rows = [row for row in rows if row[1] <= heads[topic]]
            if rows:
                after[topic] = rows[-1][1]
                pages[topic] = rows[::-1]
            else:
                del after[topic]
        if not pages:
            break
        topic = min(pages, key=lambda name: pages[name][-1][0])
        row = pages[topic].pop()
        if not pages[topic]:
            del pages[topic]
        try:
            line = _line(topic, row)
        except StorageCorrupt as error:
            if damaged is None or len(damaged) >= MOST_DAMAGED:
                raise
            damaged.append(Damaged(topic, row[1], str(error)))
        else:
            yield _shown(line)
    for topic, consumer, position in await store.run(_cursors, write=False):
        yield _shown(msgspec.json.encode({"cursor": [topic, consumer, position]}))


class Importer:
    """Writes the lines of an export to *store*, a few thousand records in each transaction.

    Topics that have records already raise StorageError. With *resume*, records up to the newest
    offset of such a topic are skipped, because an earlier import has written them.
    """

    def __init__(self, store: Store, *, resume: bool = False) -> None:
        self.records: int = 0
        self.skipped: int = 0
        self._store = store
        self._resume = resume
        self._heads: dict[str, int] = {}
        self._waiting: list[tuple[str, Row]] = []
        self._size = 0
        self._begun = False
        self._there: dict[str, int] = {}

    async def feed(self, lines: Iterable[bytes]) -> None:
        """Import *lines*."""
        for line in lines:
            if line.strip():
                await self._take(line)

    async def finish(self) -> None:
        """Write the last records, and set the newest offset of every topic."""
        if not self._begun:
            raise StorageError("this is not an export: it is empty")
        await self._flush()
        for topic, head in self._heads.items():
            await self._store.run(partial(_raise_head, topic, head))

    async def _take(self, line: bytes) -> None:
        if not self._begun:
            await self._begin(line)
            return
        if line.lstrip().startswith(b'{"cursor"'):
            topic, consumer, position = _decoded(line, _Cursor).cursor
            await self._store.run(partial(move_cursor, check_topic(topic), consumer, position))
            return
        item = _decoded(line, _Record)
        row = _row(item)
        if row[1] <= self._there.get(item.topic, 0):
            self.skipped += 1
            return
        self._waiting.append((item.topic, row))
        self._size += len(row[3])
        if len(self._waiting) >= 2000 or self._size > PAGE_BYTES:
            await self._flush()

    async def _begin(self, line: bytes) -> None:
        first = _decoded(line, _Header)
        if first.harn_export == 0:
            raise StorageError("this is not an export: its first line has no 'harn_export'")
        if first.harn_export > VERSION:
            raise StorageVersion("this export was written by a newer harn; upgrade harn")
        self._begun = True
        self._heads = {check_topic(name): head for name, head in first.topics.items()}
        self._there = await self._store.run(list_topics, write=False)
        taken = sorted(name for name in self._heads if self._there.get(name))
        if taken and not self._resume:
            raise StorageError(
                f"topic {taken[0]!r} has records here already; import into an empty store, "
                "or resume the import if it was interrupted"
            )

    async def _flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            await self._store.run(lambda: _restore(waiting))
            self.records += len(waiting)


def _cursors() -> Operation[Rows]:
    return (yield ask("list_cursors"))


async def _page(
    store: Store, topic: str, after: int, head: int, damaged: list[Damaged] | None
) -> Rows:
    """Read the next records; if that fails and *damaged* is given, in smaller and smaller pages.

    A single record that cannot be read is added to *damaged* and skipped.
    """
    limit = PAGE
    while True:
        try:
            return await store.run(partial(records, topic, after, limit), write=False)
        except StorageCorrupt as error:
            if damaged is None or after >= head or len(damaged) >= MOST_DAMAGED:
                raise
            if limit > 1:
                limit = limit // 8 or 1
            else:
                after += 1
                damaged.append(Damaged(topic, after, str(error)))


def _raise_head(topic: str, head: int) -> Operation[None]:
    yield ask("raise_head", topic=topic, head=head)


def _restore(items: list[tuple[str, Row]]) -> Operation[None]:
    """Write records at their own offsets, which must be above the newest ones of their topics."""
    places: dict[str, int] = {}
    largest: dict[str, int] = {}
    for topic, row in items:
        largest[topic] = max(largest.get(topic, 0), len(row[3]))
        places[topic] = row[1]
    taken: dict[str, Any] = {}
    for topic in sorted(places):
        [(_, before, _)] = yield ask(TAKE_OFFSETS, topic=topic, count=0, largest=largest[topic])
        first = next(row[1] for name, row in items if name == topic)
        if first <= before:
            raise StorageError(f"topic {topic!r} has a record {first} already")
        [(taken[topic], _)] = yield ask("raise_head", topic=topic, head=places[topic])
    yield ask_many("insert_events", COLUMNS, [(taken[t], *row[1:]) for t, row in items])


def _line(topic: str, row: Row) -> bytes:
    _, id, kind, payload, headers, at = row
    try:
        event_of(topic, *row[1:])
        return msgspec.json.encode(
            {
                "topic": topic,
                "id": id,
                "kind": kind,
                "at": at,
                "headers": msgspec.Raw(headers),
                "payload": msgspec.Raw(payload),
            }
        )
    except (StorageCorrupt, ValueError) as error:
        raise StorageCorrupt(f"{topic}: record {id} cannot be read ({error})") from None


def _shown(line: bytes) -> bytes:
    # Control characters would change a terminal, and some tools split lines at U+2028 or U+0085.
    if line.isascii() and b"\x7f" not in line:
        return line + b"\n"
    return in_json(line.decode()).encode() + b"\n"


def _row(item: _Record) -> Row:
    check_topic(item.topic)
    check_kind(item.kind)
    payload = encode("payload", item.payload, MOST_IMPORTED)
    return (0, item.id, item.kind, payload, encode_headers(item.headers), item.at)


def _decoded(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (ValueError, RecursionError) as error:
        raise StorageCorrupt(f"a line of the export cannot be read: {error}") from None
