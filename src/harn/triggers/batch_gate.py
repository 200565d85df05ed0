"""A batch at its gate: which events are in it, and which of them dispatches it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harn.storage.triggers import GateChange, Mark
from harn.triggers.gate_rules import Batch, batch_is_full


class BatchState(msgspec.Struct):
    """What a member of a batch read from the store."""

    members: list[Mark] | None = None
    merged: bool = False
    until_ms: int = 0

    @property
    def is_collecting(self) -> bool:
        """Whether this member's batch still collects events."""
        return self.members is None and self.until_ms > 0


def lead_batch(
    batch: Batch, ticket: int, state: BatchState, marks: list[Mark], now: int
) -> Sequence[GateChange]:
    """Read the state of a batch; its first member dispatches it when it is full or too old.

    The members of a dispatched batch are held, with their leader's ticket as their rank. If the
    leader is gone, they collect events again: no handler has seen them yet.
    """
    state.members, state.merged, state.until_ms = None, False, 0
    there = {mark.ticket for mark in marks}
    if ticket not in there:
        state.merged = True
        return []
    collected = [mark for mark in marks if not mark.held or mark.rank not in there]
    if not collected or all(mark.ticket != ticket for mark in collected):
        return []
    first = collected[0]
    state.until_ms = first.at_ms + batch.timeout_ms
    if first.ticket != ticket or not batch_is_full(batch, len(collected), first.at_ms, now):
        return []
    state.until_ms = 0
    members = state.members = collected[: batch.size]
    tickets = tuple(mark.ticket for mark in members)
    details = {"members": len(members)}
    return [GateChange("batch_dispatched", "hold", tickets, rank=ticket, details=details)]
