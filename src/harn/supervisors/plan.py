"""What a supervisor does next, and when it decides again: a pure decision over its children.

A child must end because the supervisor stops, or because it is restarted with a sibling. Such
children end one at a time, from right to left: each is asked to stop, cancelled when its share of
the time is over, and skipped if it does not end even then. A child that waits starts when it is
due, from left to right: not while a child of its batch has still to end, and not before its left
neighbour in the batch.
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
    must_end: bool
    """Its end is planned."""
    asked: bool
    """It was asked to stop."""
    cancelled: bool
    skipped: bool
    """It was cancelled and did not end in time."""
    until: float
    """When the time to end is over, after it was asked or cancelled."""
    at: float | None
    """When it may start; None if it does not wait for a start."""
    batch: int | None
    """Children with the same number end and start together."""


@dataclass(slots=True)
class SupervisorPlan:
    """What to do now, by the children's indexes, and when to plan again."""

    ask: int | None = None
    cancel: int | None = None
    skip: int | None = None
    start: list[int] = field(default_factory=list)
    again_at: float = math.inf


def make_plan(children: Sequence[PlannedChild], now: float) -> SupervisorPlan:
    """Decide what to do with *children* at *now*."""
    plan = SupervisorPlan()
    _plan_the_end(plan, children, now)
    _plan_the_start(plan, children, now)
    return plan


def share(by: float, now: float, left: int) -> float:
    """Return how long one of *left* children may take to end, if all must have ended *by* then."""
    return max(0.0, by - now) / max(1, left)


def is_due(when: float, now: float) -> bool:
    """Tell whether the time *when* is reached."""
    return now >= when - TIMER_TOLERANCE


def _plan_the_end(plan: SupervisorPlan, children: Sequence[PlannedChild], now: float) -> None:
    for index in range(len(children) - 1, -1, -1):
        child = children[index]
        if not (child.must_end and child.alive) or child.skipped:
            continue
        if not child.asked:
            plan.ask = index
        elif not is_due(child.until, now):
            plan.again_at = child.until
        elif child.cancelled:
            plan.skip = index
        else:
            plan.cancel = index
        return


def _plan_the_start(plan: SupervisorPlan, children: Sequence[PlannedChild], now: float) -> None:
    blocked = {child.batch for child in children if child.alive and child.must_end}
    blocked.discard(None)
    for index, child in enumerate(children):
        if child.at is None or child.alive or child.batch in blocked:
            continue
        if is_due(child.at, now):
            plan.start.append(index)
            continue
        plan.again_at = min(plan.again_at, child.at)
        if child.batch is not None:
            blocked.add(child.batch)
