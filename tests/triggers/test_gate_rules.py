"""The gates' options and decisions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption
from harn.triggers.gate_rules import (
    Batch,
    Concurrency,
    Debounce,
    Flow,
    GatePlace,
    GateWindow,
    Order,
    Singleton,
    Wait,
    batch_is_full,
    check_flow,
    gate_key,
    has_turn,
    within_window,
)
from tests.triggers.trigger_events import an_event


def test_every_gate_is_read() -> None:
    flow = check_flow(
        {
            "concurrency": {"max": 2, "key": "tenant_id"},
            "throttle": {"max": 1, "period": "1m"},
            "rate_limit": {"max": 9, "period": 5},
            "debounce": {"period": "250ms", "key": "kind"},
            "singleton": True,
        },
        order={"key": "kind", "order": ["urgent", 1]},
    )

    assert flow == Flow(
        debounce=Debounce(250, "kind"),
        rate_limit=GateWindow(9, 5000),
        throttle=GateWindow(1, 60_000),
        singleton=Singleton(),
        concurrency=Concurrency(2, "tenant_id"),
        order=Order("kind", ("urgent", "1")),
    )
    assert flow.as_dict()["debounce"] == {"period": "250ms", "key": "kind"}


def test_a_batch_stands_alone() -> None:
    assert check_flow({"batch": {"size": 3, "timeout": "5s"}}).batch == Batch(3, 5000)
    with pytest.raises(InvalidOption, match="no other gate beside batch"):
        check_flow({"batch": {"size": 3, "timeout": "5s"}, "singleton": True})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"throttel": {}}, "did you mean 'throttle'"),
        ({"throttle": {"max": 1}}, "'period'"),
        ({"throttle": {"max": 0, "period": 1}}, r"throttle\.max"),
        ({"throttle": {"max": True, "period": 1}}, r"throttle\.max"),
        ({"throttle": {"max": 1, "period": 0}}, r"throttle\.period"),
        ({"throttle": {"max": 1, "period": "x"}}, r"throttle\.period"),
        ({"throttle": {"max": 1, "perod": 1}}, "did you mean 'period'"),
        ({"rate_limit": 5}, "rate_limit"),
        ({"debounce": {"period": "-1s"}}, r"debounce\.period"),
        ({"batch": {"size": 2**40, "timeout": 1}}, r"batch\.size"),
        ({"singleton": {"key": ""}}, r"singleton\.key"),
        ({"concurrency": {"max": 1.5}}, r"concurrency\.max"),
        ({"concurrency": {"max": float("nan")}}, r"concurrency\.max"),
    ],
)
def test_a_bad_gate_is_named(options: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        check_flow(options)


def test_an_order_needs_slots_to_wait_for() -> None:
    with pytest.raises(InvalidOption, match="with concurrency"):
        check_flow({}, order={"key": "kind", "order": ["a"]})


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 4), st.integers(1, 100), st.lists(st.integers(0, 40), max_size=60))
def test_a_window_never_holds_more_than_its_maximum(
    most: int, period: int, gaps: list[int]
) -> None:
    window = GateWindow(most, period)
    admitted: list[int] = []
    now = 1000
    for gap in gaps:
        now += gap
        decision = within_window(window, admitted, now)
        if decision is None:
            admitted.append(now)
        else:
            assert decision.until_ms > now
            assert within_window(window, admitted, decision.until_ms) is None
            assert isinstance(within_window(window, admitted, decision.until_ms - 1), Wait)

    for start in admitted:
        assert sum(start <= at < start + period for at in admitted) <= most


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=1, max_size=10, unique=True
    ),
    st.integers(1, 3),
)
def test_exactly_the_first_in_line_has_the_turn(line: list[tuple[int, int]], most: int) -> None:
    places = [GatePlace(*pair) for pair in line]

    turns = [place for place in places if has_turn(place, places, most - 1, most)]

    assert turns == [min(places)]
    assert not any(has_turn(place, places, most, most) for place in places)


def test_rank_is_the_place_in_the_order_and_unknown_comes_last() -> None:
    order = Order("provider_payload.payload.p", ("urgent", "normal"))
    ranks = [
        order.rank(an_event(provider_payload={"payload": {"p": p}}))
        for p in ("urgent", "normal", "x", None)
    ]

    assert ranks == [0, 1, 2, 2]


def test_a_batch_fires_at_its_size_or_its_time() -> None:
    batch = Batch(3, 1000)

    assert [batch_is_full(batch, n, 0, 999) for n in (1, 2, 3)] == [False, False, True]
    assert batch_is_full(batch, 1, 0, 1000)


def test_S12_a_gates_key_is_a_tenants_own() -> None:
    path = "provider_payload.payload.k"

    def of(tenant: str | None, k: str | None) -> str:
        event = an_event(tenant_id=tenant, provider_payload={"payload": {"k": k}})
        return gate_key("b", "throttle", path, event)

    assert of("a", "x") != of("b", "x")
    assert of("a", "x") != of("a", "y")
    assert of("a", None) == of("a", None)
    assert gate_key("b", "throttle", None, an_event(tenant_id="a")) == gate_key(
        "b", "throttle", None, an_event()
    )
    assert gate_key("b", "throttle", None, an_event()) != of(None, "_global")
