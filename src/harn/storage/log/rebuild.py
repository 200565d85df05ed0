"""Fold the whole log again, to compare the result with the indexes or to replace them by it.

The fold runs in a private SQLite in memory, with the same statements, so the result is the same
for every engine. Both operations block writers, because the log and the indexes can be compared
only at one instant.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import apsw
import msgspec

from harn.clock import SystemClock
from harn.errors import StorageCorrupt
from harn.storage.contract import Event
from harn.storage.engines import Session, fold_record, migrate
from harn.storage.indexes import Index, Table, all_indexes
from harn.storage.log.events import PAGE, event_of, records
from harn.storage.log.trim import Trimmed, oldest_kept, trimmed_queues
from harn.storage.operations import Operation, Row, Rows, ask, ask_many
from harn.topics import queue_topics

logger: logging.Logger = logging.getLogger("harn.storage")

Progress = Callable[[int], None]
MOST_SHOWN = 20


class Difference(msgspec.Struct, frozen=True):
    """A row that the log gives and the table does not have (`missing`), or the reverse (`extra`).

    A record that cannot be folded is `unreadable`, in the table `events`.
    """

    table: str
    kind: str
    row: Row


def compare(
    indexes: Sequence[Index] | None = None, progress: Progress | None = None
) -> Operation[list[Difference]]:
    """Fold the log and compare the result with the indexes; return the differences.

    Rows of settled jobs whose records were trimmed are no difference.
    """
    found: list[Difference] = []
    for index in all_indexes() if indexes is None else indexes:
        scratch, unread = yield from _folded(index, progress, (yield from _queues(index)))
        found += [Difference("events", "unreadable", row) for row in unread[:MOST_SHOWN]]
        trimmed = Trimmed({})
        for table in index.tables:
            kept = yield ask(table.dump)
            if table.name == "queues":
                trimmed = yield from trimmed_queues(kept)
            found += _differences(table, kept, scratch.execute(ask(table.dump)), trimmed)
        scratch.connection.close()
    return found


def rebuild(
    indexes: Sequence[Index] | None = None, progress: Progress | None = None
) -> Operation[dict[str, int]]:
    """Replace the indexes by the result of folding the log; return the number of rows by table.

    A queue whose claims were trimmed keeps what it shares by, which the log may no longer have.
    """
    counts: dict[str, int] = {}
    for index in all_indexes() if indexes is None else indexes:
        known = yield from _queues(index)
        scratch, unread = yield from _folded(index, progress, [each for each in known if each.keys])
        for topic, id, reason in unread:
            logger.warning(
                "%s: record %s cannot be folded, so no index contains it: %s", topic, id, reason
            )
        for table in index.tables:
            rows = scratch.execute(ask(table.dump))
            yield ask(table.clear)
            for start in range(0, len(rows), PAGE):
                yield ask_many(table.restore, table.columns, rows[start : start + PAGE])
            counts[table.name] = len(rows)
        scratch.connection.close()
    return counts


class _Queue(msgspec.Struct, frozen=True):
    """A queue of the index; with what it shares by if the records of that may be trimmed."""

    name: str
    keys: _Keys | None


class _Keys(NamedTuple):
    dimension: str
    cap: int
    charge: str
    hierarchy: str
    pool: str | None


def _queues(index: Index) -> Operation[list[_Queue]]:
    """Return the queues of the index, in the order of their numbers."""
    table = next((each for each in index.tables if each.name == "queues"), None)
    if table is None:
        return []
    yield ask("freeze")
    found: list[_Queue] = []
    pools = {name: settings for _, name, settings in (yield ask("list_pools"))}
    for row in sorted((yield ask(table.dump))):
        told = dict(zip(table.columns, row, strict=True))
        name = told["name"]
        is_trimmed = (yield from oldest_kept(queue_topics(name).claims)) > 1
        keys = _Keys(
            told["dimension"], told["cap"], told["charge"], told["hierarchy"], pools.get(name)
        )
        found.append(_Queue(name, keys if is_trimmed else None))
    return found


def _folded(
    index: Index, progress: Progress | None, queues: Sequence[_Queue] = ()
) -> Operation[tuple[Session, list[Row]]]:
    """Fold the log; list the records that cannot be folded as (topic, id, reason).

    *queues* are added first, so that each keeps its number even if all its records were trimmed.
    """
    connection = apsw.Connection(":memory:", statementcachesize=200)
    migrate(connection, "a fold in memory")
    scratch = Session(connection, SystemClock)
    yield ask("freeze")
    listed = yield ask("list_topics")
    merge = _Merge([name for name, _ in listed if index.wants(name)])
    scratch.begin()
    for queue in queues:
        scratch.execute(ask("add_queue", queue=queue.name))
        if queue.keys is not None:
            scratch.drive(_remember_keys(queue.name, queue.keys))
    count, unread = 0, list[Row]()
    while (event := (yield from merge.next())) is not None:
        if (reason := fold_record(scratch, index, event)) is not None:
            unread.append((event.topic, event.id, reason))
        count += 1
        if progress is not None and count % PAGE == 0:
            progress(count)
    scratch.commit()
    return scratch, unread


def _remember_keys(queue: str, keys: _Keys) -> Operation[None]:
    [(queue_id, *_)] = yield ask("open_queue", queue=queue)
    yield ask("set_dimension", queue_id=queue_id, dimension=keys.dimension)
    yield ask("set_cap", queue_id=queue_id, cap=keys.cap)
    yield ask("set_charge", queue_id=queue_id, charge=keys.charge)
    yield ask("set_hierarchy", queue_id=queue_id, hierarchy=keys.hierarchy)
    if keys.pool is not None:
        yield ask("set_pool", queue_id=queue_id, settings=keys.pool)


class _Merge:
    """Merges the records of several topics in the order they were appended, by pages."""

    def __init__(self, topics: list[str]) -> None:
        self._pages: dict[str, deque[tuple[int, Event | None]]] = {t: deque() for t in topics}
        self._after = dict.fromkeys(topics, 0)

    def next(self) -> Operation[Event | None]:
        """Return the next readable record, or None at the end."""
        while True:
            for topic in [t for t, page in self._pages.items() if not page]:
                yield from self._fill(topic)
            if not self._pages:
                return None
            first = min(self._pages.values(), key=lambda page: page[0][0])
            _, event = first.popleft()
            if event is not None:
                return event

    def _fill(self, topic: str) -> Operation[None]:
        rows = yield from records(topic, self._after[topic])
        if not rows:
            del self._pages[topic]
            return
        self._after[topic] = rows[-1][1]
        self._pages[topic].extend((row[0], _event(topic, row)) for row in rows)


def _event(topic: str, row: Row) -> Event | None:
    try:
        return event_of(topic, *row[1:])
    except StorageCorrupt:
        return None  # readers of the topic report it; it has no part in an index


def _differences(table: Table, kept: Rows, folded: Rows, trimmed: Trimmed) -> list[Difference]:
    there, given = set(map(tuple, kept)), set(map(tuple, folded))
    missing, extra = given - there, there - given
    by_missing, by_extra = ({row[:2]: row for row in rows} for rows in (missing, extra))
    explained = {
        row for row in extra if trimmed.explains(table.name, table.columns, row, by_missing)
    }
    missing -= {row for row in missing if by_extra.get(row[:2]) in explained}
    return [
        *(Difference(table.name, "missing", row) for row in _some(missing)),
        *(Difference(table.name, "extra", row) for row in _some(extra - explained)),
    ]


def _some(rows: set[Row]) -> list[Row]:
    return sorted(rows, key=repr)[:MOST_SHOWN]
