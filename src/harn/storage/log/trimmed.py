"""What a trim explains: an index remembers settled work whose records are gone.

A trim keeps every record of a queue that is not settled. Of the others the index still holds the
totals, after a forced trim also rows, and no fold of what is left can give them: that is no damage.
Only in a queue that has been trimmed, and only for what came before its oldest record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harn.storage.operations import Operation, Row, ask
from harn.topics import queue_topics

JOB_COLUMN = {"jobs": "id", "job_dedupe": "job_id"}
"""Where a table names the job that a row is about, by its offset."""
REMEMBERED = {"queue_triggers"}
"""Tables of what was ever seen in a queue."""
TOTALS = {
    "queues": {
        *("acked", "purged", "dead", "responses", "promotions", "ages"),
        *("round", "last_key", "promoted"),
    },
    "shares": {"turn", "round", "credit"},
}
"""Columns that count, or go on from, what came before."""


@dataclass(frozen=True, slots=True)
class Trimmed:
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
