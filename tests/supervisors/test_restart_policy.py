"""Deciding: what follows an exit, whom it concerns, and how long a restart waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn.supervisors.restart_policy import (
    Again,
    CircuitOpen,
    GiveUp,
    Outcome,
    RestartHistory,
    affected,
    after_exit,
    backoff_ms,
    exit_noted,
    restart_noted,
)
from harn.supervisors.spec import Mode, Policy, Restart, Strategy


@pytest.mark.parametrize(
    ("mode", "outcome", "expected"),
    [
        ("never", "clean", GiveUp("finished")),
        ("never", "failed", GiveUp("failed")),
        ("on_failure", "clean", GiveUp("finished")),
        ("on_failure", "failed", Again(at=7.0, delay_ms=0)),
        ("always", "clean", Again(at=7.0, delay_ms=0)),
        ("always", "failed", Again(at=7.0, delay_ms=0)),
    ],
)
def test_the_mode_decides_whether_an_exit_is_answered(
    mode: Mode, outcome: Outcome, expected: Any
) -> None:
    assert after_exit(Restart(mode=mode).policy, outcome, RestartHistory(), 7.0) == expected


@pytest.mark.parametrize(
    ("restart", "delays"),
    [
        (Restart(backoff_ms=10, max_backoff_ms=40, jitter_ms=3), [13, 23, 43, 43]),
        (Restart(backoff_ms=250), [250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]),
        (Restart(backoff_ms=100, max_backoff_ms=50), [100, 100]),
        (Restart(backoff_ms=1, factor=2.5), [1, 3, 6, 16]),
        (Restart(backoff_ms=5, factor=1), [5, 5, 5]),
        (Restart(), [0, 0, 0]),
    ],
)
def test_the_delay_grows_and_is_capped(restart: Restart, delays: list[int]) -> None:
    assert [backoff_ms(restart.policy, k, 0) for k in range(len(delays))] == delays


@given(
    k=st.sampled_from([0, 1, 2, 10, 1000, 10**6, 10**9]),
    base=st.integers(0, 10**9),
    cap=st.integers(0, 10**9),
    factor=st.floats(1, 1e9),
    jitter=st.integers(0, 10**6),
    index=st.integers(0, 1000),
)
@settings(deadline=None)
def test_U2_a_delay_lies_between_its_power_and_its_jitter(
    k: int, base: int, cap: int, factor: float, jitter: int, index: int
) -> None:
    policy = Restart(backoff_ms=base, max_backoff_ms=cap, factor=factor, jitter_ms=jitter).policy

    delay = backoff_ms(policy, k, index)

    try:
        grown = base * factor**k
    except OverflowError:
        grown = float("inf") if base else 0
    least = min(grown, max(cap, base))
    assert least - 0.5 <= delay <= least + 0.5 + jitter


def test_one_allowed_restart_means_one_restart() -> None:
    policy = Restart(max_restarts=1).policy
    first = after_exit(policy, "failed", RestartHistory(), 0.0)
    history = restart_noted(exit_noted(RestartHistory(), policy, first, 0.0), policy, 0.0)

    second = after_exit(policy, "failed", history, 1.0)

    assert (first, second) == (Again(0.0, 0), GiveUp("spent"))


def test_an_exit_that_left_the_window_is_forgotten() -> None:
    policy = Restart(max_restarts=1, window_ms="1m").policy
    history = RestartHistory(restart_count=1, exits=(0.0,), restarts=(0.0,))

    assert after_exit(policy, "failed", history, 59.9) == GiveUp("spent")
    assert after_exit(policy, "failed", history, 60.0) == Again(60.0, 0)


def test_a_window_of_zero_counts_over_the_whole_life() -> None:
    policy = Restart(max_restarts=2, window_ms=0).policy

    assert isinstance(after_exit(policy, "failed", RestartHistory(restart_count=1), 1e9), Again)
    assert after_exit(policy, "failed", RestartHistory(restart_count=2), 1e9) == GiveUp("spent")


def test_a_spent_budget_opens_the_circuit_and_clears_the_counters() -> None:
    policy = Restart(max_restarts=0, circuit_open_ms="5m").policy
    history = RestartHistory(restart_count=3, exits=(1.0,), restarts=(1.0,))

    decision = after_exit(policy, "failed", history, 10.0)

    assert decision == CircuitOpen(310.0)
    assert exit_noted(history, policy, decision, 10.0) == RestartHistory(0, (), (1.0,))


def test_a_trial_is_charged_to_the_budget() -> None:
    policy = Restart(max_restarts=1, window_ms=1000, circuit_open_ms=5000).policy
    after_trial = restart_noted(RestartHistory(), policy, 5.0)

    assert after_exit(policy, "failed", after_trial, 5.5) == CircuitOpen(10.5)
    assert after_exit(policy, "failed", after_trial, 6.0) == Again(6.0, 0)


policies = st.builds(
    Restart,
    mode=st.just("always"),
    max_restarts=st.integers(0, 4),
    window_ms=st.integers(1, 3000),
    backoff_ms=st.integers(0, 500),
    factor=st.floats(1, 4),
    jitter_ms=st.integers(0, 900),
    max_backoff_ms=st.integers(0, 2000),
).map(lambda restart: restart.policy)


@given(policy=policies, index=st.integers(0, 5), lives=st.lists(st.floats(0, 2), max_size=60))
@settings(deadline=None, max_examples=300)
def test_U1_no_window_holds_more_restarts_than_allowed(
    policy: Policy, index: int, lives: list[float]
) -> None:
    history, now, restarts = RestartHistory(), 0.0, []
    for life in lives:
        now += life
        decision = after_exit(policy, "failed", history, now, index=index)
        if not isinstance(decision, Again):
            break
        history = exit_noted(history, policy, decision, now)
        now = decision.at
        history = restart_noted(history, policy, now)
        restarts.append(now)

    most = policy.max_restarts
    assert most is not None
    for first, last in zip(restarts, restarts[most:], strict=False):
        assert last - first >= policy.window - 1e-9
    assert len(history.exits) <= most + 1
    assert len(history.restarts) <= most + 1


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", [1]),
        ("rest_for_one", [1, 2, 3]),
        ("one_for_all", [0, 1, 2, 3]),
        ("escalate_to_parent", [1]),
    ],
)
def test_U3_the_strategy_names_the_set(strategy: Strategy, expected: list[int]) -> None:
    assert list(affected(strategy, 1, 4)) == expected
