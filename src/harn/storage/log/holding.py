"""What a trim must leave: records that others, still kept, cannot be read rightly without.

A record that settles another is of use as long as that other one is there: without it, a fold of
the log would find a finished job ready again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harn.errors import StorageCorrupt
from harn.storage.codec import decode
from harn.storage.log.events import PAGE, PAGE_BYTES
from harn.storage.operations import Operation, ask


def as_young_as_the_oldest(topic: str, other: str) -> Operation[int | None]:
    """Return the first offset of *topic* that is not older than the oldest record of *other*."""
    oldest = yield ask("read_events", topic=other, after=0, limit=1, budget=1)
    if not oldest:
        return None
    first = yield ask("first_offset_since", topic=topic, since=oldest[0][4])
    return int(first[0][0]) if first else None


def first_that(topic: str, is_needed: Callable[[dict[str, Any]], bool]) -> Operation[int | None]:
    """Return the first offset of *topic* whose payload *is_needed*."""
    after = 0
    while rows := (
        yield ask("read_events", topic=topic, after=after, limit=PAGE, budget=PAGE_BYTES)
    ):
        for id, _, payload, *_ in rows:
            if is_needed(_read(payload)):
                return int(id)
        after = int(rows[-1][0])
    return None


def _read(payload: Any) -> dict[str, Any]:
    try:
        found = decode(payload)
    except StorageCorrupt:
        return {}
    return found if isinstance(found, dict) else {}
