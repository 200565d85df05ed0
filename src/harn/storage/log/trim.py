"""Trimming a topic by age and count, never past what somebody still needs.

Unsettled records (a job that nobody has finished, as its index tells) and records that a consumer
with a stored cursor has not seen are kept, whatever was asked, unless *force* says otherwise.
Offsets go on where they were: a topic trimmed to nothing continues after its last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from harn.storage.indexes import INDEXES, Index
from harn.storage.operations import Operation, ask

AT_MOST = 2000
"""Records removed in one transaction, so that a trim does not hold up writers."""
DAY_MS = 86_400_000


def trim(
    topic: str,
    *,
    keep: int | None = None,
    before_ms: int | None = None,
    force: bool = False,
    dedupe_ms: int = DAY_MS,
    indexes: Sequence[Index] | None = None,
) -> Operation[int]:
    """Remove records of *topic* beyond the newest *keep* or older than *before_ms*.

    What the indexes kept of them goes too. A settled job whose dedupe key still counts, for
    *dedupe_ms*, stays. Returns how many went; call again until it is 0.
    """
    concerned = [each for each in (INDEXES if indexes is None else indexes) if each.wants(topic)]
    rows = yield ask("topic_head", topic=topic)
    first = yield ask("first_offset", topic=topic)
    if not rows or not first:
        return 0
    below = yield from _asked_for(topic, int(rows[0][0]), keep, before_ms)
    below = min(below, int(first[0][0]) + AT_MOST)
    if not force:
        below = yield from _allowed(topic, below, concerned, dedupe_ms)
    gone = yield ask("trim_events", topic=topic, below=below, at_most=AT_MOST)
    if gone:
        for index in concerned:
            yield from index.forget(topic, below)
    return len(gone)


def _asked_for(topic: str, head: int, keep: int | None, before_ms: int | None) -> Operation[int]:
    below = 0 if keep is None else head - keep + 1
    if before_ms is not None:
        young = yield ask("first_offset_since", topic=topic, since=before_ms)
        below = max(below, int(young[0][0]) if young else head + 1)
    return below


def _allowed(topic: str, below: int, indexes: Sequence[Index], dedupe_ms: int) -> Operation[int]:
    [(slowest,)] = yield ask("lowest_cursor", topic=topic)
    if slowest is not None:
        below = min(below, int(slowest) + 1)
    for index in indexes:
        held = yield from index.held(topic, below, dedupe_ms)
        if held is not None:
            below = min(below, held)
    return below
