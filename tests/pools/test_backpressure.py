"""Admission decisions as tables, eviction orders against models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption, PoolBusy, PoolFull
from harn.pools.backpressure import (
    ADMIT,
    DROP_NEWEST,
    DROP_OLDEST,
    PARK,
    RING_LONGEST,
    RING_OLDEST,
    UNBOUNDED,
    Backpressure,
    Refuse,
    backpressure_queue,
    decide,
    fail_fast,
    read_backpressure,
    ring_buffer,
)
from harn.pools.eviction import Longest, Oldest
from tests.pools.pool_items import Item

BLOCK = backpressure_queue(2)


@pytest.mark.parametrize(
    ("policy", "queued", "running", "ahead", "expected"),
    [
        (UNBOUNDED, 10**9, 1, 0, ADMIT),
        (BLOCK, 0, 0, 0, ADMIT),
        (BLOCK, 1, 1, 0, ADMIT),
        (BLOCK, 2, 1, 0, PARK),
        (BLOCK, 1, 1, 1, PARK),
        (BLOCK, 0, 0, 1, PARK),
        (backpressure_queue(2, "drop_oldest"), 2, 1, 0, DROP_OLDEST),
        (backpressure_queue(2, "drop_newest"), 2, 1, 0, DROP_NEWEST),
        (backpressure_queue(2, "drop_newest"), 1, 1, 0, ADMIT),
        (ring_buffer(2), 2, 1, 0, RING_OLDEST),
        (ring_buffer(2, "longest"), 2, 1, 0, RING_LONGEST),
        (ring_buffer(2), 1, 1, 0, ADMIT),
        (fail_fast(), 0, 0, 0, ADMIT),
    ],
)
def test_a_submit_meets_what_its_policy_says(
    policy: Any, queued: int, running: int, ahead: int, expected: Any
) -> None:
    assert decide(policy, queued=queued, running=running, slots=1, ahead=ahead) == expected


@given(
    policy=st.sampled_from(
        [UNBOUNDED, backpressure_queue(3), backpressure_queue(3, "fail_submitter"), fail_fast()]
    ),
    slots=st.integers(1, 4),
    running=st.integers(0, 4),
    queued=st.integers(0, 3),
    count=st.integers(1, 8),
)
def test_a_batch_is_admitted_exactly_if_its_calls_would_be_one_after_the_other(
    policy: Any, slots: int, running: int, queued: int, count: int
) -> None:
    running = min(running, slots)
    queued = queued if running == slots else 0  # a free slot means an empty queue
    whole = decide(policy, queued=queued, running=running, slots=slots, count=count)

    decisions = []
    for _ in range(count):
        decisions.append(decide(policy, queued=queued, running=running, slots=slots))
        running, queued = (running + 1, 0) if running < slots else (running, queued + 1)

    assert (whole == ADMIT) == (decisions == [ADMIT] * count)


def test_B5_fail_fast_admits_exactly_when_a_slot_is_free() -> None:
    for running in range(4):
        decision = decide(fail_fast(), queued=0, running=running, slots=3)

        if running < 3:
            assert decision == ADMIT
        else:
            assert isinstance(decision, Refuse) and decision.error is PoolBusy


def test_slots_that_tasks_in_the_queue_will_take_are_no_room_for_a_submit() -> None:
    # In a shared pool a free slot may be kept for the process of a queued closure.
    assert decide(backpressure_queue(2), queued=1, running=0, slots=3) == ADMIT
    assert decide(backpressure_queue(2), queued=2, running=0, slots=3) == PARK


def test_fail_submitter_names_the_depth_and_the_way_out() -> None:
    decision = decide(backpressure_queue(7, "fail_submitter"), queued=7, running=1, slots=1)

    assert isinstance(decision, Refuse)
    assert decision.error is PoolFull
    assert "7 queued" in decision.why
    assert "max_depth" in decision.why


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, None, "5", float("nan"), 2**63])
@pytest.mark.parametrize("make", [backpressure_queue, ring_buffer])
def test_depths_below_one_are_refused(make: Any, depth: Any) -> None:
    with pytest.raises(InvalidOption):
        make(depth)


@pytest.mark.parametrize(
    "wrong",
    [
        "queue",
        3,
        {"kind": "queue"},
        {"kind": "queue", "max_depth": 3, "on_ful": "drop_oldest"},
        {"kind": "fail_fast", "max_depth": 3},
        {"max_depth": 3},
        {"kind": ["queue"], "max_depth": 3},
    ],
)
def test_a_wrong_policy_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption):
        read_backpressure(wrong)


def test_a_policy_is_read_from_all_its_spellings() -> None:
    bp = Backpressure()

    assert read_backpressure(None) is UNBOUNDED
    assert read_backpressure("unbounded") is UNBOUNDED
    assert read_backpressure("fail_fast") == bp.fail_fast() == read_backpressure(bp.fail_fast)
    assert read_backpressure({"kind": "queue", "capacity": 3}) == bp.queue(3)
    assert read_backpressure(bp.ring_buffer(4, "longest").as_dict()) == bp.ring_buffer(4, "longest")
    with pytest.raises(InvalidOption, match="did you mean 'drop_oldest'"):
        bp.queue(3, "drop_olest")  # type: ignore[arg-type]


KEYS = st.sampled_from([None, "a", "b", "c"])


@settings(deadline=None, max_examples=100)
@given(steps=st.lists(st.tuples(st.sampled_from(["add", "drop", "evict"]), KEYS), max_size=120))
@pytest.mark.parametrize("order", [Oldest, Longest])
def test_B3_B7_the_victim_is_the_oldest_of_all_or_of_the_longest(order: Any, steps: Any) -> None:
    arrivals, model = order(), []
    for seq, (what, key) in enumerate(steps):
        if what == "add":
            model.append(Item(seq, partition=key))
            arrivals.add(model[-1])
        elif what == "drop" and model:
            arrivals.discard(model.pop(seq % len(model)))
        elif model:
            victim = arrivals.victim(key)
            sizes = {k: sum(each.partition == k for each in model) for k in (None, "a", "b", "c")}
            if order is Oldest:
                assert victim is model[0]
            else:
                assert sizes[victim.partition] == max(sizes.values())
                mine = [each for each in model if each.partition == victim.partition]
                assert victim is mine[0]
                if sizes[key] == max(sizes.values()):
                    assert victim.partition == key
            model.remove(victim)
            arrivals.discard(victim)


def test_an_absent_task_is_discarded_without_harm() -> None:
    both: list[Oldest[Item] | Longest[Item]] = [Oldest(), Longest()]
    for arrivals in both:
        first, second = Item(1, partition="x"), Item(2, partition="x")
        arrivals.discard(first)
        arrivals.add(first)
        arrivals.add(second)

        arrivals.discard(Item(3, partition="x"))
        arrivals.discard(Item(4, partition="y"))

        assert arrivals.victim(None) is first
        arrivals.discard(first)
        assert arrivals.victim(None) is second
