"""What a supervisor does next, and when it has to look again: a pure decision over its children.

A *condemned* child is to end, because the supervisor stops or a sibling takes it along. Condemned
children end one at a time, from the right to the left: each is asked first, cancelled when its
share of the time is over, and passed by if it does not end even then. A *waiting* child starts when
its time has come, from the left to the right: not while a child of its batch still runs, and not
before its neighbour on the left in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

GRACE = 0.4
"""Seconds that a cancelled child has before it is called abandoned."""
SLACK = 1e-6
"""Timers may fire a clock tick early; that is not too early."""


class Place(Protocol):
    """A child as the plan sees it."""

    alive: bool
    """Its task has not ended yet."""
    condemned: bool
    asked: bool
    cancelled: bool
    passed_by: bool
    """It did not end although it was cancelled."""
    until: float
    """When patience with it ends, once it was asked or cancelled."""
    at: float | None
    """When it may start; None for one that does not wait to be started."""
    batch: int | None
    """The children with the same number end and start together with it."""


@dataclass(slots=True)
class Plan:
    """What to do now, by the children's places, and when to look again."""

    ask: int | None = None
    cancel: int | None = None
    pass_by: int | None = None
    start: list[int] = field(default_factory=list)
    look_again: float = math.inf


def make_plan(places: Sequence[Place], now: float) -> Plan:
    """Decide what is to be done with *places* at *now*."""
    plan = Plan()
    _plan_the_end(plan, places, now)
    _plan_the_start(plan, places, now)
    return plan


def share(by: float, now: float, left: int) -> float:
    """Return how long one of *left* children may take to end, if all are to have ended *by*."""
    return max(0.0, by - now) / max(1, left)


def is_due(when: float, now: float) -> bool:
    """Tell whether *when* has come."""
    return now >= when - SLACK


def _plan_the_end(plan: Plan, places: Sequence[Place], now: float) -> None:
    for index in range(len(places) - 1, -1, -1):
        place = places[index]
        if not (place.condemned and place.alive) or place.passed_by:
            continue
        if not place.asked:
            plan.ask = index
        elif not is_due(place.until, now):
            plan.look_again = place.until
        elif place.cancelled:
            plan.pass_by = index
        else:
            plan.cancel = index
        return


def _plan_the_start(plan: Plan, places: Sequence[Place], now: float) -> None:
    held = {place.batch for place in places if place.alive and place.condemned}
    held.discard(None)
    for index, place in enumerate(places):
        if place.at is None or place.alive or place.batch in held:
            continue
        if is_due(place.at, now):
            plan.start.append(index)
            continue
        plan.look_again = min(plan.look_again, place.at)
        if place.batch is not None:
            held.add(place.batch)
