"""Operations on the event log: append, read, and consumers' cursors.

Offsets count from 1 in each topic and are taken from the topic's own row. On PostgreSQL that
row stays locked until the commit, so the records of a topic become visible in the order of their
offsets and a reader never skips one (see `docs/design/postgres-order.md`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harn.errors import StorageCorrupt
from harn.storage.codec import EMPTY, decode
from harn.storage.contract import APPEND, TAKE_OFFSETS, Damaged, Draft, Event, topics_of
from harn.storage.operations import Ask, Operation, Row, Rows, ask, ask_many, ask_together

PAGE = 500
"""Records in a page, at most."""
PAGE_BYTES = 16 * 1024 * 1024
"""Roughly what a page may weigh; one record always fits."""
COLUMNS = ("topic_id", "id", "kind", "payload", "headers", "at")


def append(drafts: Sequence[Draft], *, places: bool = True) -> Operation[list[tuple[int, int]]]:
    """Append *drafts*, to several topics if need be, all or none; return (id, time) of each.

    Records of one topic keep their order. Topics are locked in the order of their names, so
    that two such operations cannot block each other. Without *places* nothing comes back, and an
    engine need not wait for it.
    """
    params = {"drafts": drafts, "places": places}
    placed: Any = yield Ask(APPEND, params, is_optional=True)
    if placed is None:
        placed = yield from _append_in_steps(drafts)
    return placed  # type: ignore[no-any-return]


def _append_in_steps(drafts: Sequence[Draft]) -> Operation[list[tuple[int, int]]]:
    if len(drafts) == 1:  # a topic of its own, so no more than it must
        [item] = drafts
        answer = yield ask(TAKE_OFFSETS, topic=item.topic, count=1, largest=len(item.payload))
        topic_id, id, now = answer[0]
        at = now if item.at_ms is None else item.at_ms
        row = (topic_id, id, item.kind, item.payload, item.headers, at)
        yield ask_many("insert_events", COLUMNS, (row,))
        return [(id, at)]
    topics = topics_of(drafts)
    asked = [
        ask(TAKE_OFFSETS, topic=topic, count=count, largest=largest)
        for topic, count, largest in topics
    ]
    answers = yield ask_together(asked)
    taken: dict[str, tuple[int, Iterator[int], int]] = {}
    for (topic, count, _), [(topic_id, head, now)] in zip(topics, answers, strict=True):
        taken[topic] = topic_id, iter(range(head - count + 1, head + 1)), now
    rows: list[Row] = []
    for item in drafts:
        topic_id, offsets, now = taken[item.topic]
        at = now if item.at_ms is None else item.at_ms
        rows.append((topic_id, next(offsets), item.kind, item.payload, item.headers, at))
    yield ask_many("insert_events", COLUMNS, rows)
    return [(row[1], row[5]) for row in rows]


def read(topic: str, after: int, limit: int = PAGE) -> Operation[tuple[list[Event], list[Damaged]]]:
    """Read a page of *topic* after offset *after*; an empty one means there is no more.

    A page may be shorter than *limit* although more follows. A record that cannot be decoded
    is reported beside the others and harms none of them.
    """
    rows = yield ask("read_events", topic=topic, after=after, limit=limit, budget=PAGE_BYTES)
    events: list[Event] = []
    damaged: list[Damaged] = []
    for id, kind, payload, headers, at in rows:
        try:
            events.append(event_of(topic, id, kind, payload, headers, at))
        except StorageCorrupt as error:
            damaged.append(Damaged(topic, id, str(error)))
    return events, damaged


def newest(topic: str, count: int) -> Operation[list[Event]]:
    """Read the newest *count* records of *topic*, oldest first, without damaged ones.

    Of records larger than a page in all, only some of the newest come back.
    """
    last = yield from head(topic)
    while True:
        found, damaged = yield from read(topic, max(0, last - count), count)
        ids = [*(event.id for event in found), *(each.id or 0 for each in damaged)]
        reached = max(ids, default=last)
        if reached >= last or count == 1:
            return found
        if not (yield ask("read_events", topic=topic, after=reached, limit=1, budget=1)):
            return found  # the offsets after it were skipped
        count //= 2


def records(topic: str, after: int, limit: int = PAGE) -> Operation[Rows]:
    """Read a page of *topic* as it is stored: (order, offset, kind, payload, headers, time).

    The order is that of all topics. A page may be shorter than *limit* although more follows.
    """
    return (yield ask("read_records", topic=topic, after=after, limit=limit, budget=PAGE_BYTES))


def record_at(topic: str, id: int) -> Operation[bytes]:
    """Read the payload at an offset, encoded as it is; empty if there is none."""
    rows = yield ask("read_events", topic=topic, after=id - 1, limit=1, budget=1)
    return bytes(rows[0][2] or b"") if rows and rows[0][0] == id else b""


def event_of(topic: str, id: Any, kind: Any, payload: Any, headers: Any, at: Any) -> Event:
    """Read a record from its row; one that cannot be what was written is `StorageCorrupt`."""
    # Most records have no headers: without decoding `{}` this takes a tenth less time.
    found, told = decode(payload), {} if headers == EMPTY else decode(headers)
    if not (isinstance(told, dict) and isinstance(kind, str) and isinstance(at, int)):
        raise StorageCorrupt("its kind, headers or time is not what it was")
    return Event(id, topic, kind, found, told, at)


def head(topic: str) -> Operation[int]:
    """Return the newest offset of *topic*, 0 before its first record."""
    rows = yield ask("topic_head", topic=topic)
    return int(rows[0][0]) if rows else 0


def list_topics() -> Operation[dict[str, int]]:
    """Return every topic with its newest offset."""
    rows = yield ask("list_topics")
    for name, newest in rows:
        if not (isinstance(name, str) and isinstance(newest, int)):
            raise StorageCorrupt(f"the newest offset of topic {name!r} cannot be read: {newest!r}")
    return dict(rows)


def now() -> Operation[int]:
    """Return the store's time, in milliseconds."""
    [(ms,)] = yield ask("now")
    return int(ms)


def move_cursor(topic: str, consumer: str, position: int) -> Operation[int]:
    """Move the cursor of *consumer* in *topic* to *position*; a cursor never moves back."""
    [(at,)] = yield ask("move_cursor", topic=topic, consumer=consumer, position=position)
    return int(at)


def read_cursor(topic: str, consumer: str) -> Operation[int]:
    """Return the cursor of *consumer* in *topic*, 0 before it was moved."""
    rows = yield ask("read_cursor", topic=topic, consumer=consumer)
    return int(rows[0][0]) if rows else 0


def drop_cursor(topic: str, consumer: str) -> Operation[bool]:
    """Forget *consumer*, so that it no longer holds back a trim."""
    return bool((yield ask("drop_cursor", topic=topic, consumer=consumer)))


def skip_offsets(topic: str, count: int) -> Operation[None]:
    """Skip so many offsets of *topic*, whose records were dropped."""
    yield ask(TAKE_OFFSETS, topic=topic, count=count, largest=0)
