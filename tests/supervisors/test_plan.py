"""What to do next with children that must end and children that wait to start."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harn.supervisors.plan import make_plan, share


@dataclass
class Somebody:
    alive: bool = True
    condemned: bool = False
    asked: bool = False
    cancelled: bool = False
    passed_by: bool = False
    until: float = 0.0
    at: float | None = None
    batch: int | None = None


def condemned(**more: Any) -> Somebody:
    return Somebody(condemned=True, **more)


def waiting(at: float, batch: int | None = None) -> Somebody:
    return Somebody(alive=False, at=at, batch=batch)


def test_nothing_to_do_means_nothing_to_wait_for() -> None:
    plan = make_plan([Somebody(), Somebody(alive=False)], 5.0)

    assert (plan.ask, plan.cancel, plan.pass_by, plan.start) == (None, None, None, [])
    assert plan.look_again == math.inf


def test_the_rightmost_condemned_child_is_asked_first() -> None:
    places = [condemned(), condemned(), Somebody()]

    assert make_plan(places, 0.0).ask == 1


def test_the_others_wait_while_one_is_given_its_time() -> None:
    plan = make_plan([condemned(), condemned(asked=True, until=3.0)], 1.0)

    assert (plan.ask, plan.cancel, plan.look_again) == (None, None, 3.0)


def test_patience_ends_in_a_cancel_and_then_in_being_passed_by() -> None:
    asked = condemned(asked=True, until=3.0)
    cancelled = condemned(asked=True, cancelled=True, until=3.0)

    assert make_plan([condemned(), asked], 3.0).cancel == 1
    assert make_plan([condemned(), cancelled], 3.0).pass_by == 1
    assert make_plan([condemned(), condemned(passed_by=True)], 3.0).ask == 0


def test_waiting_children_start_from_the_left_when_their_time_has_come() -> None:
    plan = make_plan([waiting(1.0), waiting(9.0), waiting(2.0)], 2.0)

    assert plan.start == [0, 2]
    assert plan.look_again == 9.0


def test_a_batch_starts_only_when_all_of_it_has_ended() -> None:
    still_there = condemned(passed_by=True, batch=1)

    assert make_plan([waiting(0.0, batch=1), still_there], 5.0).start == []
    assert make_plan([waiting(0.0, batch=2), still_there], 5.0).start == [0]


def test_nobody_of_a_batch_overtakes_the_neighbour_on_the_left() -> None:
    places = [waiting(1.0, batch=1), waiting(9.0, batch=1), waiting(2.0, batch=1)]

    plan = make_plan(places, 5.0)

    assert plan.start == [0]
    assert plan.look_again == 9.0


def test_a_timer_that_fires_a_tick_early_is_not_too_early() -> None:
    assert make_plan([waiting(1.0)], 1.0 - 1e-9).start == [0]


def test_time_is_shared_among_those_left() -> None:
    assert share(10.0, 4.0, 3) == 2.0
    assert share(10.0, 12.0, 3) == 0.0
