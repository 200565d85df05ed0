"""What a supervisor does next, and when it decides again: a pure decision over its children.

A *condemned* child must end, because the supervisor stops or because it is restarted with a
sibling. Condemned children end one at a time, from right to left: each is asked to stop, cancelled
when its share of the time is over, and skipped if it does not end even then. A *waiting* child
starts when it is due, from left to right: not while a condemned child of its batch still runs, and
not before its left neighbour in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

GRACE = 0.4
"""Seconds that a cancelled child has to end before it counts as abandoned."""
TIMER_TOLERANCE = 1e-6
"""Seconds that a timer may fire early."""


class PlannedChild(Protocol):
    """The fields of a child that the plan reads."""

    alive: bool
    """Its task has not ended yet."""
    condemned: bool
    asked: bool
    cancelled: bool
    passed_by: bool
    """It was cancelled and did not end in time."""
    until: float
    """When the time to end is over, after it was asked or cancelled."""
    at: float | None
    """When it may start; None if it does not wait for a start."""
    batch: int | None
    """Children with the same number end and start together."""


@dataclass(slots=True)
class Plan:
    """What to do now, by the children's indexes, and when to plan again."""

    ask: int | None = None
    cancel: int | None = None
    pass_by: int | None = None
    start: list[int] = field(default_factory=list)
    look_again: float = math.inf


def make_plan(children: Sequence[PlannedChild], now: float) -> Plan:
    """Decide what to do with *children* at *now*."""
    plan = Plan()
    _plan_the_end(plan, children, now)
    _plan_the_start(plan, children, now)
    return plan


def share(by: float, now: float, left: int) -> float:
    """Return how long one of *left* children may take to end, if all must have ended *by* then."""
    return max(0.0, by - now) / max(1, left)


def is_due(when: float, now: float) -> bool:
    """Tell whether the time *when* is reached."""
    return now >= when - TIMER_TOLERANCE


def _plan_the_end(plan: Plan, children: Sequence[PlannedChild], now: float) -> None:
    for index in range(len(children) - 1, -1, -1):
        child = children[index]
        if not (child.condemned and child.alive) or child.passed_by:
            continue
        if not child.asked:
            plan.ask = index
        elif not is_due(child.until, now):
            plan.look_again = child.until
        elif child.cancelled:
            plan.pass_by = index
        else:
            plan.cancel = index
        return


def _plan_the_start(plan: Plan, children: Sequence[PlannedChild], now: float) -> None:
    held = {child.batch for child in children if child.alive and child.condemned}
    held.discard(None)
    for index, child in enumerate(children):
        if child.at is None or child.alive or child.batch in held:
            continue
        if is_due(child.at, now):
            plan.start.append(index)
            continue
        plan.look_again = min(plan.look_again, child.at)
        if child.batch is not None:
            held.add(child.batch)
