"""Moving a log between engines: out as JSON lines, in again with the same offsets.

    {"harn_export":1,"topics":{"news":2}}
    {"topic":"news","id":1,"kind":"greeting","at":1767225600000,"headers":{},"payload":"hi"}
    {"cursor":["news","reader",1]}

Records come in the order they were made, over all topics, so the indexes can be folded from
them. The export is a moment: what is appended while it runs stays out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

import msgspec

from harn.errors import StorageCorrupt, StorageError, StorageVersion
from harn.escaping import in_json
from harn.storage.contract import Damaged
from harn.storage.log import COLUMNS, PAGE, PAGE_BYTES, TAKE_OFFSETS, event_of, topics
from harn.storage.operations import Operation, Row, Rows, ask, ask_many
from harn.storage.store import Store

VERSION = 1
MOST_DAMAGED = 1000
"""Records that an export leaves out, at most."""


async def export(store: Store, damaged: list[Damaged] | None = None) -> AsyncIterator[bytes]:
    """Yield the lines of an export of *store*, header first.

    A record that cannot be read stops it, unless it can be noted in *damaged* and left out.
    """
    heads = await store.run(topics, write=False)
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
    """Takes the lines of an export into *store*, a few thousand in each transaction.

    Topics that have records already are refused, unless *resume*: then what lies at or below
    their newest offset is taken as here already.
    """

    def __init__(self, store: Store, *, resume: bool = False) -> None:
        self.records = 0
        self.skipped = 0
        self._store = store
        self._resume = resume
        self._heads: dict[str, int] = {}
        self._waiting: list[tuple[str, Row]] = []
        self._size = 0
        self._begun = False
        self._there: dict[str, int] = {}

    async def feed(self, lines: Iterable[bytes]) -> None:
        """Take *lines* in."""
        for line in lines:
            if line.strip():
                await self._take(_decoded(line))

    async def finish(self) -> None:
        """Write what is left and give every topic its newest offset."""
        if not self._begun:
            raise StorageError("this is no export: it has no first line")
        await self._flush()
        for topic, head in self._heads.items():
            await self._store.run(lambda t=topic, h=head: _raise(t, h))  # type: ignore[misc]

    async def _take(self, item: dict[str, Any]) -> None:
        if not self._begun:
            await self._begin(item)
        elif "cursor" in item:
            topic, consumer, position = item["cursor"]
            await self._store.run(lambda: _move(topic, consumer, position))
        else:
            row = _row(item)
            if row[1] <= self._there.get(item["topic"], 0):
                self.skipped += 1
                return
            self._waiting.append((item["topic"], row))
            self._size += len(row[3])
            if len(self._waiting) >= 2000 or self._size > PAGE_BYTES:
                await self._flush()

    async def _begin(self, item: dict[str, Any]) -> None:
        if item.get("harn_export", 0) > VERSION:
            raise StorageVersion("this export was written by a newer harn; upgrade")
        if "harn_export" not in item:
            raise StorageError("this is no export: its first line does not say so")
        self._begun = True
        self._heads = item["topics"]
        self._there = await self._store.run(topics, write=False)
        taken = sorted(name for name in self._heads if self._there.get(name))
        if taken and not self._resume:
            raise StorageError(
                f"topic {taken[0]!r} has records here already; import into an empty store, "
                "or resume an import that was interrupted"
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
    """Read the next records; around a broken page by smaller steps, if damage can be noted."""
    limit = PAGE
    while True:
        try:
            return await store.run(partial(_records, topic, after, limit), write=False)
        except StorageCorrupt as error:
            if damaged is None or after >= head or len(damaged) >= MOST_DAMAGED:
                raise
            if limit > 1:
                limit = limit // 8 or 1
            else:
                after += 1
                damaged.append(Damaged(topic, after, str(error)))


def _records(topic: str, after: int, limit: int) -> Operation[Rows]:
    return (yield ask("read_records", topic=topic, after=after, limit=limit, budget=PAGE_BYTES))


def _move(topic: str, consumer: str, position: int) -> Operation[None]:
    yield ask("move_cursor", topic=topic, consumer=consumer, position=position)


def _raise(topic: str, head: int) -> Operation[None]:
    yield ask("raise_head", topic=topic, head=head)


def _restore(items: list[tuple[str, Row]]) -> Operation[None]:
    """Write records at their own offsets, which must lie above the topics' newest ones."""
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
    # People read exports on terminals, and tools split them at any line separator.
    if line.isascii() and b"\x7f" not in line:
        return line + b"\n"
    return in_json(line.decode()).encode() + b"\n"


def _row(item: dict[str, Any]) -> Row:
    return (
        0,
        item["id"],
        item["kind"],
        msgspec.json.encode(item["payload"]),
        msgspec.json.encode(item["headers"]),
        item["at"],
    )


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except ValueError as error:
        raise StorageCorrupt(f"a line of the export cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise StorageCorrupt("a line of the export is no object")
    return found
