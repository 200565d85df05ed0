"""Trimming a topic by age and count, never past what is still needed.

Records of unsettled work (a job that is not finished, as its index tells) and records that a
consumer with a stored cursor has not seen are kept, whatever was asked, unless *force* says
otherwise; the latest record of a stored value is kept even then. Offsets continue where they were,
also in a topic that was trimmed to nothing.

A record that settles another is needed as long as that other one is there: without it, a fold of
the log would find a finished job ready again. An index asks `first_since_oldest` and `first_where`
for such records.

Of settled records the index still holds the totals, after a forced trim also rows, and no fold of
what is left can give them. That is no damage: `Trimmed` explains it, only in a queue that has been
trimmed and only for what came before its oldest record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from harn.errors import StorageCorrupt
from harn.storage.codec import decode
from harn.storage.indexes import Index, all_indexes
from harn.storage.log.events import PAGE, PAGE_BYTES
from harn.storage.operations import Operation, Row, ask
from harn.topics import queue_topics

AT_MOST = 2000
"""Records removed in one transaction, so that a trim does not hold up writers."""
DAY_MS = 86_400_000

JOB_COLUMN = {
    "jobs": "id",
    "job_dedupe": "job_id",
    "job_tickets": "job_id",
    "job_steps": "job_id",
    "pool_cancels": "job_id",
}
"""Where a table names the job that a row is about, by its offset."""
REMEMBERED = {"queue_triggers"}
"""Tables of what was ever seen in a queue."""
TOTALS = {
    "queues": {
        *("acked", "purged", "dead", "cancelled", "responses", "promotions", "ages"),
        *("expired", "retried", "handled", "trimmed"),
        *("round", "last_key", "promoted"),
    },
    "shares": {"turn", "round", "credit", "refill"},
    "share_nodes": {"turn", "round", "credit", "refill"},
}
"""Columns that count earlier records, or continue from them."""


def trim(
    topic: str,
    *,
    keep: int | None = None,
    before_ms: int | None = None,
    below: int | None = None,
    at_most: int = AT_MOST,
    force: bool = False,
    dedupe_ms: int = DAY_MS,
    indexes: Sequence[Index] | None = None,
) -> Operation[int]:
    """Remove records of *topic* beyond the newest *keep*, older than *before_ms*, or *below* one.

    What the indexes kept of them goes too. A settled job whose dedupe key still counts, for
    *dedupe_ms*, stays. Returns how many went, *at_most* so many; call again until it is 0.
    """
    known = all_indexes() if indexes is None else indexes
    concerned = [each for each in known if each.wants(topic)]
    rows = yield ask("topic_head", topic=topic)
    first = yield ask("first_offset", topic=topic)
    if not rows or not first:
        return 0
    head, most = int(rows[0][0]), int(first[0][0]) + at_most
    until = max(below or 0, 0 if keep is None else head - keep + 1)
    if before_ms is not None:
        until = max(until, (yield from _first_since(topic, before_ms, most)) or head + 1)
    until = min(until, most)
    if force:
        holding = [each for each in concerned if each.keeps_latest]
    else:
        holding = concerned
        [(slowest,)] = yield ask("lowest_cursor", topic=topic)
        until = until if slowest is None else min(until, int(slowest) + 1)
    until = yield from _allowed(topic, until, holding, dedupe_ms)
    gone = yield ask("trim_events", topic=topic, below=until, at_most=at_most)
    if gone:
        for index in concerned:
            yield from index.forget(topic, until)
    return len(gone)


def _first_since(topic: str, since: int, below: int) -> Operation[int | None]:
    """Return the first offset of *topic* that is not older than a time, if it is *below* one."""
    first = yield ask("first_offset_since", topic=topic, since=since, below=below)
    return int(first[0][0]) if first else None


def _allowed(topic: str, below: int, indexes: Sequence[Index], dedupe_ms: int) -> Operation[int]:
    for index in indexes:
        held = yield from index.held(topic, below, dedupe_ms)
        if held is not None:
            below = min(below, held)
    return below


def first_since_oldest(topic: str, other: str, below: int) -> Operation[int | None]:
    """Return the first offset of *topic*, *below* one, that is as new as the oldest of *other*."""
    oldest = yield ask("read_events", topic=other, after=0, limit=1, budget=1)
    if not oldest:
        return None
    return (yield from _first_since(topic, oldest[0][4], below))


def first_where(topic: str, is_needed: Callable[[dict[str, Any]], bool]) -> Operation[int | None]:
    """Return the first offset of *topic* whose payload *is_needed*."""
    after = 0
    while rows := (
        yield ask("read_events", topic=topic, after=after, limit=PAGE, budget=PAGE_BYTES)
    ):
        for id, _, payload, *_ in rows:
            if is_needed(_decoded(payload)):
                return int(id)
        after = int(rows[-1][0])
    return None


def _decoded(payload: Any) -> dict[str, Any]:
    try:
        found = decode(payload)
    except StorageCorrupt:
        return {}
    return found if isinstance(found, dict) else {}


class Trimmed(msgspec.Struct, frozen=True):
    """Queues that have been trimmed: the oldest job record each of them still has."""

    oldest: Mapping[int, int]

    def explains(
        self, table: str, columns: Sequence[str], row: Row, others: Mapping[Row, Row]
    ) -> bool:
        """Tell whether *row*, which the fold does not give, is what a trim leaves behind.

        *others* are the rows on the other side, by their first two columns.
        """
        oldest = self.oldest.get(row[0])
        if oldest is None:
            return False
        if table in JOB_COLUMN:
            return bool(row[columns.index(JOB_COLUMN[table])] < oldest)
        other = others.get(row[:2])
        if table in REMEMBERED:
            return other is None
        if table not in TOTALS or other is None:
            return False
        differing = {name for name, one, two in zip(columns, row, other, strict=True) if one != two}
        return differing <= TOTALS[table]


def trimmed_queues(queues: Sequence[Row]) -> Operation[Trimmed]:
    """Look which of *queues* (id, name ...) have lost records to a trim."""
    oldest: dict[int, int] = {}
    for queue_id, name, *_ in queues:
        kept = yield from oldest_kept(queue_topics(name).jobs)
        if kept > 1:
            oldest[queue_id] = kept
    return Trimmed(oldest)


def oldest_kept(topic: str) -> Operation[int]:
    """Return the oldest offset of *topic*, or the next one if nothing is left; 1 if none was."""
    first = yield ask("first_offset", topic=topic)
    if first:
        return int(first[0][0])
    head = yield ask("topic_head", topic=topic)
    return int(head[0][0]) + 1 if head else 1
