"""Carry out what a gate of a trigger or the circuit of a destination decides, under a lock.

The decision comes in as a function: this room knows no policy. A gate has a mark for each event
that waits at it, holds a slot of it or has passed it lately. A mark's ticket is the offset of the
record that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harn import topics
from harn.storage.codec import draft
from harn.storage.contract import Draft
from harn.storage.operations import Operation, ask
from harn.storage.triggers.owners import renewal
from harn.storage.triggers.trigger_fold import lock, write


class Mark(msgspec.Struct, frozen=True):
    """An event that waits at a gate, or has passed it."""

    ticket: int
    owner: str
    rank: int
    held: bool
    envelope: int
    at_ms: int


class GateChange(msgspec.Struct, frozen=True):
    """What to write about a gate: a record, and what it does to the marks.

    `add` makes a mark, whose ticket is the record's offset. `hold` and `drop` change the marks
    *tickets*. `clear` removes all marks, `replace` clears and adds, `note` changes none.
    """

    kind: str
    does: str
    tickets: tuple[int, ...] = ()
    rank: int = 0
    held: bool = False
    prune_ms: int = 0
    """With `add`: marks of this age have left the gate's window."""
    details: dict[str, Any] = {}


Decide = Callable[[list[Mark], int], Sequence[GateChange]]
"""Decide, from a gate's marks and the time, what happens; it must have no other effect."""


def at_gate(
    gate: str, owner: str, envelope: int, decide: Decide, *, only_first: bool = False
) -> Operation[list[int]]:
    """Ask *decide* about the marks of *gate* and write the changes, while no other caller can.

    With *only_first*, *decide* need not see more of the marks that wait than the one whose turn
    comes first; then the others are not read. Marks of owners that are gone are removed first.
    Returns the offset of each record.
    """
    yield from lock(topics.TRIGGER_FLOW)
    [(now,)] = yield ask("now")
    marks, gone = yield from _marks_of(gate, owner, only_first)
    drafts = [
        _mark_draft(
            gate,
            mark.owner,
            mark.envelope,
            GateChange(
                "concurrency_released", "drop", (mark.ticket,), details={"reason": "owner is gone"}
            ),
            now,
        )
        for mark in gone
    ]
    cleared = len(drafts)
    drafts += [_mark_draft(gate, owner, envelope, change, now) for change in decide(marks, now)]
    if not drafts:
        return []
    drafts += yield from renewal(owner, now)
    placed = yield from write(drafts)
    return [
        id for item, id in zip(drafts, placed, strict=True) if item.topic == topics.TRIGGER_FLOW
    ][cleared:]


def _marks_of(gate: str, owner: str, only_first: bool) -> Operation[tuple[list[Mark], list[Mark]]]:
    """Read the marks of *gate*, and apart from them those whose owners are gone."""
    rows = yield ask("trigger_marks_ahead" if only_first else "trigger_marks_of", gate=gate)
    marks: list[Mark] = []
    gone: list[Mark] = []
    for ticket, holder, rank, held, of, at_ms, is_alive in rows:
        mark = Mark(ticket, holder, rank, bool(held), of, at_ms)
        (gone if holder and holder != owner and not is_alive else marks).append(mark)
    if only_first and not all(mark.held for mark in gone):  # another waits first, then
        return (yield from _marks_of(gate, owner, False))
    return marks, gone


def _mark_draft(gate: str, owner: str, envelope: int, change: GateChange, now: int) -> Draft:
    payload: dict[str, Any] = {
        "gate": gate,
        "does": change.does,
        "owner": owner,
        "envelope": envelope,
        "at_ms": now,
        **change.details,
    }
    if change.does in ("hold", "drop"):
        payload |= {"tickets": change.tickets, "rank": change.rank}
    if change.does in ("add", "replace"):
        payload |= {"rank": change.rank, "held": change.held, "prune_ms": change.prune_ms}
    return draft(topics.TRIGGER_FLOW, change.kind, payload)


class CircuitRow(msgspec.Struct, frozen=True):
    """What is stored of a destination."""

    failures: int = 0
    open_until_ms: int = 0
    probing_until_ms: int = 0


def at_circuit(
    destination: str, decide: Callable[[CircuitRow, int], tuple[Any, CircuitRow]]
) -> Operation[Any]:
    """Ask *decide* about *destination*, store the new state, and return the answer."""
    yield from lock(topics.TRIGGER_FLOW)
    rows = yield ask("trigger_circuit_get", destination=destination)
    [(now,)] = yield ask("now")
    before = CircuitRow(*rows[0]) if rows else CircuitRow()
    answer, after = decide(before, now)
    if after != before:
        payload = {"destination": destination, **msgspec.structs.asdict(after)}
        yield from write([draft(topics.TRIGGER_FLOW, "circuit_changed", payload)])
    return answer


def has_no_failures(destination: str) -> Operation[bool]:
    """Tell whether nothing is stored of *destination*: it has not failed lately."""
    return not (yield ask("trigger_circuit_get", destination=destination))


def circuits() -> Operation[list[tuple[str, CircuitRow]]]:
    """List the destinations that have failed lately."""
    rows = yield ask("trigger_circuits_all")
    return [(row[0], CircuitRow(*row[1:])) for row in rows]
