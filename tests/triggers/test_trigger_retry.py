"""Retry schedules, error classes and the destination's circuit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption
from harn.triggers.circuit_breaker import (
    CLOSED,
    OPEN_MS,
    THRESHOLD,
    Circuit,
    admit,
    after_failure,
)
from harn.triggers.retry import BY_HAND, FROM_MANIFEST, Retry, check_retry, error_class


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        (Retry(backoff="immediate"), [0, 0, 0, 0]),
        (Retry(backoff="svix"), [0, 5, 300, 1800, 7200, 18000, 36000, 36000, 36000]),
        (Retry(backoff="linear", delay=3), [0, 3, 3, 3]),
        (Retry(backoff="exponential", delay=2), [0, 2, 4, 8, 16]),
    ],
)
def test_delays_before_each_attempt(retry: Retry, delays: list[float]) -> None:
    assert [retry.before(n) for n in range(1, len(delays) + 1)] == delays


def test_an_exponential_delay_neither_overflows_nor_passes_its_cap() -> None:
    assert Retry(backoff="exponential", delay=1).before(10**6) == 36_000


def test_the_two_defaults_differ_on_purpose() -> None:
    assert check_retry(None, BY_HAND).backoff == "svix"
    assert check_retry(None, FROM_MANIFEST).backoff == "immediate"
    assert check_retry({"max": 0}, BY_HAND).max == 7
    assert check_retry({"max": 3}, FROM_MANIFEST) == Retry(3, "immediate")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (5, "retry"),
        ({"maxx": 1}, "did you mean 'max'"),
        ({"max": 101}, "retry.max"),
        ({"max": True}, "retry.max"),
        ({"max": -1}, "retry.max"),
        ({"backoff": "svx"}, "did you mean 'svix'"),
        ({"backoff": 5}, "retry.backoff"),
        ({"delay": "-1s"}, "retry.delay"),
        ({"retention_days": 0}, "retry.retention_days"),
    ],
)
def test_a_bad_retry_is_named(value: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        check_retry(value, BY_HAND)


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("token budget exhausted", "budget_exhausted"),
        ("deadline of 5s passed", "handler_timeout"),
        ("request timed out", "handler_timeout"),
        ("peer answered 403", "auth_failed"),
        ("provider gave 502", "provider_5xx"),
        ("handler raised ValueError: x", "handler_panic"),
        ("no such pool", "unknown"),
        ("budget " * 5000, "unknown"),
    ],
)
def test_errors_are_sorted_into_classes(message: str, name: str) -> None:
    assert error_class(message) == name


def failing(times: int, now: int = 0) -> Circuit:
    circuit = CLOSED
    for _ in range(times):
        circuit = after_failure(circuit, now)
    return circuit


def test_the_fifth_failure_in_a_row_opens_the_circuit() -> None:
    assert failing(THRESHOLD - 1).state(0) == "closed"
    assert failing(THRESHOLD).state(0) == "open"
    assert not admit(failing(THRESHOLD), OPEN_MS - 1)[0]


def test_after_a_minute_one_probe_may_try() -> None:
    first, circuit = admit(failing(THRESHOLD), OPEN_MS)
    second, _ = admit(circuit, OPEN_MS + 1)

    assert (first, second) == (True, False)
    assert after_failure(circuit, OPEN_MS).state(OPEN_MS * 2 - 1) == "open"


def test_a_probe_that_vanished_does_not_block_forever() -> None:
    _, circuit = admit(failing(THRESHOLD), OPEN_MS)

    assert admit(circuit, OPEN_MS * 2)[0]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 90_000)), max_size=60))
def test_a_closed_circuit_always_admits_and_an_open_one_never_does(
    steps: list[tuple[bool, int]],
) -> None:
    circuit, now = CLOSED, 0
    for success, passed in steps:
        now += passed
        state = circuit.state(now)
        admitted, circuit = admit(circuit, now)
        assert admitted or state != "closed"
        assert not admitted or state != "open"
        if admitted:
            circuit = CLOSED if success else after_failure(circuit, now)
