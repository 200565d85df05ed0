"""What to do next with children that must end and children that wait to start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harn.supervisors.plan import make_plan, share


@dataclass
class ChildState:
    alive: bool = True
    must_end: bool = False
    asked: bool = False
    cancelled: bool = False
    skipped: bool = False
    until: float = 0.0
    at: float | None = None
    batch: int | None = None


def ending(**more: Any) -> ChildState:
    return ChildState(must_end=True, **more)


def waiting(at: float, batch: int | None = None) -> ChildState:
    return ChildState(alive=False, at=at, batch=batch)


def test_nothing_to_do_means_nothing_to_wait_for() -> None:
    plan = make_plan([ChildState(), ChildState(alive=False)], 5.0)

    assert (plan.ask, plan.cancel, plan.skip, plan.start) == (None, None, None, [])
    assert plan.again_at == math.inf


def test_the_rightmost_child_that_must_end_is_asked_first() -> None:
    children = [ending(), ending(), ChildState()]

    assert make_plan(children, 0.0).ask == 1


def test_the_others_wait_while_one_is_given_its_time() -> None:
    plan = make_plan([ending(), ending(asked=True, until=3.0)], 1.0)

    assert (plan.ask, plan.cancel, plan.again_at) == (None, None, 3.0)


def test_patience_ends_in_a_cancel_and_then_in_being_skipped() -> None:
    asked = ending(asked=True, until=3.0)
    cancelled = ending(asked=True, cancelled=True, until=3.0)

    plan = make_plan([ending(), asked], 3.0)
    assert (plan.ask, plan.cancel, plan.skip) == (None, 1, None)
    assert make_plan([ending(), cancelled], 3.0).skip == 1
    assert make_plan([ending(), ending(skipped=True)], 3.0).ask == 0


def test_waiting_children_start_from_the_left_when_their_time_has_come() -> None:
    plan = make_plan([waiting(1.0), waiting(9.0), waiting(2.0)], 2.0)

    assert plan.start == [0, 2]
    assert plan.again_at == 9.0


def test_a_batch_starts_only_when_all_of_it_has_ended() -> None:
    still_there = ending(skipped=True, batch=1)

    assert make_plan([waiting(0.0, batch=1), still_there], 5.0).start == []
    assert make_plan([waiting(0.0, batch=2), still_there], 5.0).start == [0]


def test_no_child_of_a_batch_overtakes_the_neighbour_on_the_left() -> None:
    children = [waiting(1.0, batch=1), waiting(9.0, batch=1), waiting(2.0, batch=1)]

    plan = make_plan(children, 5.0)

    assert plan.start == [0]
    assert plan.again_at == 9.0


def test_a_timer_that_fires_a_tick_early_is_not_too_early() -> None:
    assert make_plan([waiting(1.0)], 1.0 - 1e-9).start == [0]


def test_time_is_shared_among_those_left() -> None:
    assert share(10.0, 4.0, 3) == 2.0
    assert share(10.0, 12.0, 3) == 0.0
