"""An append in one statement: its columns, and the places that its records got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harn.storage.contract import Draft
from harn.storage.operations import Row, Rows


def append_columns(
    drafts: Sequence[Draft], topics: Sequence[tuple[str, int, int]]
) -> dict[str, Sequence[Any]]:
    """Return the columns of an append: first the topics', then the records'."""
    names, counts, largest = zip(*topics, strict=True)
    left = dict(zip(names, counts, strict=True))
    back: list[int] = []
    for item in drafts:
        left[item.topic] -= 1
        back.append(left[item.topic])
    return {
        "topics": names,
        "counts": counts,
        "largest": largest,
        "topic": [item.topic for item in drafts],
        "back": back,
        "kind": [item.kind for item in drafts],
        "payload": [item.payload for item in drafts],
        "headers": [item.headers for item in drafts],
        "at": [item.at_ms for item in drafts],
    }


def placed(
    drafts: Sequence[Draft],
    topics: Sequence[tuple[str, int, int]],
    heads: Rows,
) -> list[Row] | None:
    """Return (id, time) of each of *drafts*, given (head, time) of each of *topics* afterwards.

    None means that nothing was appended: jobs wait in the outbox and must enter first.
    """
    if not heads:
        return None
    taken = {
        topic: (iter(range(head - count + 1, head + 1)), now)
        for (topic, count, _), (head, now) in zip(topics, heads, strict=True)
    }
    found: list[Row] = []
    for item in drafts:
        offsets, now = taken[item.topic]
        found.append((next(offsets), now if item.at_ms is None else item.at_ms))
    return found
