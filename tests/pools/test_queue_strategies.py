"""The four queues against models of a few lines."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption
from harn.pools.queue_strategies import (
    QueueStrategy,
    fair_round_robin,
    fifo,
    lifo,
    priority,
    read_strategy,
)
from harn.pools.task_queues import SWEEP_AFTER
from tests.pools.pool_items import Item, Model

ALL = [fifo(), priority(), lifo(), fair_round_robin("tenant")]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"), st.integers(-2, 2), st.sampled_from([None, "", "a", "b", "default"])
        ),
        st.tuples(st.just("pop"), st.just(0), st.none()),
        st.tuples(st.just("discard"), st.integers(0, 50), st.none()),
    ),
    min_size=40,  # short programs never hold more tasks that left than tasks that wait
    max_size=200,
)


@pytest.mark.parametrize("strategy", ALL, ids=lambda each: each.kind)
@settings(deadline=None, max_examples=150)
@given(steps=STEPS, slack=st.integers(0, 5))
def test_P5_P6_every_queue_gives_the_order_of_its_model(
    strategy: Any, steps: Any, slack: Any
) -> None:
    import harn.pools.task_queues as room

    room.SWEEP_AFTER = slack
    queue, model = strategy.queue(), Model(strategy.kind)
    try:
        for seq, (what, number, key) in enumerate(steps):
            if what == "push":
                item = Item(seq, number, key)
                queue.push(item)
                model.push(item)
            elif what == "pop":
                assert queue.pop() is model.pop()
            elif model.items:
                item = model.items[number % len(model.items)]
                queue.discard(item)
                model.remove(item)
            assert len(queue) == len(model.items)
            assert {item.seq for item in queue} == {item.seq for item in model.items}
            assert len(queue._departed) <= queue.live + slack
        while (expected := model.pop()) is not None:
            assert queue.pop() is expected
        assert queue.pop() is None
    finally:
        room.SWEEP_AFTER = SWEEP_AFTER


def drained(queue: Any) -> list[Item]:
    found = []
    while (item := queue.pop()) is not None:
        found.append(item)
    return found


def test_P6_two_busy_tenants_alternate_and_a_third_joins_at_its_turn() -> None:
    queue = fair_round_robin("tenant").queue()
    for seq, key in enumerate("aaabbb"):
        queue.push(Item(seq, partition=key))
    first = [item.partition for item in (queue.pop(), queue.pop()) if item]

    queue.push(Item(9, partition="c"))

    assert first == ["a", "b"]
    assert [item.partition for item in drained(queue)] == ["a", "b", "c", "a", "b"]


def test_a_stable_rotation_does_not_restart_when_a_key_drains() -> None:
    queue = fair_round_robin().queue()
    for name in ("a1", "a2", "b1", "c1"):
        queue.push(Item(int(name[1]), partition=name[0]))

    order = [f"{item.partition}{item.seq}" for item in drained(queue)]

    assert order == ["a1", "b1", "c1", "a2"]


def test_P6_no_key_can_name_the_partition_of_those_without_one() -> None:
    queue = fair_round_robin().queue()
    for seq, key in enumerate([None, None, "default", "", "None"]):
        queue.push(Item(seq, partition=key))

    assert [item.seq for item in drained(queue)] == [0, 2, 3, 4, 1]


@pytest.mark.parametrize("strategy", ALL, ids=lambda each: each.kind)
def test_a_long_queue_is_dropped_without_deep_recursion(strategy: Any) -> None:
    queue = strategy.queue()
    last = Item(200_000)
    held_before = sys.getrefcount(last)
    for seq in range(200_000):
        queue.push(Item(seq))
    queue.push(last)

    del queue

    assert sys.getrefcount(last) == held_before


@pytest.mark.parametrize(
    ("given_as", "kind", "key"),
    [
        (None, "priority", None),
        ("fifo", "fifo", None),
        ("fair_round_robin", "fair_round_robin", "key"),
        (lifo, "lifo", None),
        (QueueStrategy().fifo, "fifo", None),
        (QueueStrategy().fair_round_robin("t"), "fair_round_robin", "t"),
        ({"kind": "lifo"}, "lifo", None),
        ({"strategy": "fair_round_robin", "key_field": "t"}, "fair_round_robin", "t"),
        (fair_round_robin("t").as_dict(), "fair_round_robin", "t"),
    ],
)
def test_a_strategy_is_read_from_all_its_spellings(
    given_as: Any, kind: str, key: str | None
) -> None:
    strategy = read_strategy(given_as)

    assert (strategy.kind, strategy.key) == (kind, key)


@pytest.mark.parametrize(
    "wrong",
    [
        *("fifoo", b"fifo", 3, object(), len),
        *({}, {"kind": "x"}, {"kind": ["fifo"]}, {"kind": "fifo", "key": "t"}),
    ],
)
def test_a_wrong_strategy_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="queue"):
        read_strategy(wrong)


def test_the_nearest_strategy_is_suggested() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'fair_round_robin'"):
        read_strategy("fair_roundrobin")


@pytest.mark.parametrize("key", ["", None, 3, "priority", "idempotency_key"])
def test_a_fair_queue_needs_a_field(key: Any) -> None:
    with pytest.raises(InvalidOption, match="key"):
        fair_round_robin(key)
