"""The end of an operation on a queue: write the queue's row, and the records that it gathered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harn.storage.contract import Draft, Event
from harn.storage.indexes import all_indexes
from harn.storage.log import append
from harn.storage.operations import Operation
from harn.storage.queue.queue_row import QueueState, save_queue, write_holding
from harn.storage.queue.single_statements import write_at_once
from harn.topics import TRIGGER_DLQ, queue_topics

UNKNOWN = (-1, -1)
"""Offsets that an engine does not tell unless it is asked."""


def write_back(state: QueueState) -> Operation[tuple[int, int] | None]:
    """Write the queue's row and the records that an operation has gathered.

    Return the newest offset of the queue's claims before and after; None if they do not grow.
    """
    drafts, state.drafts = state.drafts, []
    if not drafts:  # claims that are decided have records
        yield from save_queue(state)
        return None
    topics = [item.topic for item in drafts]
    if state.is_changed and TRIGGER_DLQ not in topics:
        placed = yield from write_at_once(state, drafts)
    else:
        yield from write_holding(state)
        yield from save_queue(state)
        placed = yield from _append(drafts)
    claims = queue_topics(state.name).claims
    count = topics.count(claims)
    if not count:
        return None
    if placed:
        first = placed[topics.index(claims)][0]  # the offsets of a topic follow each other
        return first - 1, first - 1 + count
    before, state.claimed = state.claimed, None
    return UNKNOWN if before is None else (before, before + count)


def _append(drafts: Sequence[Draft]) -> Operation[list[tuple[int, int]] | None]:
    """Append *drafts*; dead letters among them are folded into their index, if there is one.

    Return the offset and time of each, where the engine tells them without being asked.
    """
    if TRIGGER_DLQ not in {item.topic for item in drafts}:
        return (yield from append(drafts, places=False))
    placed = yield from append(drafts)
    listing = [index for index in all_indexes() if index.wants(TRIGGER_DLQ)]
    for item, (id, at) in zip(drafts, placed, strict=True):
        if item.topic == TRIGGER_DLQ:
            event = Event(id, item.topic, item.kind, msgspec.json.decode(item.payload), {}, at)
            for index in listing:
                yield from index.fold(event)
    return placed
