"""Dead letters: events that could not be delivered, and where each stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from harn import topics
from harn.storage.codec import EMPTY
from harn.storage.contract import Draft
from harn.storage.operations import Operation, ask
from harn.storage.triggers.trigger_fold import lock, write


class DeadLetter(msgspec.Struct, frozen=True):
    """Where a dead letter's latest record is, and how it stands."""

    id: str
    entry: int
    event_id: str
    binding_id: str
    state: str


def dead_letter(id: str) -> Operation[DeadLetter | None]:
    """Find the dead letter *id*."""
    rows = yield ask("trigger_dead_get", id=id)
    return DeadLetter(id, *rows[0]) if rows else None


def dead_letters(after: int = 0, limit: int = 100) -> Operation[tuple[int, list[DeadLetter]]]:
    """Return how many dead letters are pending, and the oldest of them after *after*."""
    [(count, _)] = yield ask("trigger_dead_count")
    rows = yield ask("trigger_dead_pending", after=after, limit=limit)
    return int(count), [
        DeadLetter(id, entry, event_id, binding_id, "pending")
        for id, entry, event_id, binding_id in rows
    ]


def letter_draft(letter: Mapping[str, Any]) -> Draft:
    """Make the record of a changed letter; it may be larger than the payload of a new record.

    A letter has the whole event or job that could not be delivered, and tells more of it.
    """
    return Draft(topics.TRIGGER_DLQ, "dlq_entry", msgspec.json.encode(letter), EMPTY)


def change_letter(id: str, expected: str, entry: Draft) -> Operation[bool]:
    """Write the new record *entry* of a dead letter if its state is still *expected*."""
    yield from lock(topics.TRIGGER_DLQ)
    rows = yield ask("trigger_dead_get", id=id)
    if not rows or rows[0][3] != expected:
        return False
    yield from write([entry])
    return True
