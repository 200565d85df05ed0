"""The door: what `supervisor_start` takes, and how it says no."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption
from harn.supervisors.spec import Child, Lease, Restart, read_restart, read_spec, read_strategy


def task(ctx: object) -> None: ...


def spec(**options: Any) -> Any:
    given = {
        "name": None,
        "strategy": "one_for_one",
        "children": [Child("a", task)],
        "restart": None,
        "shutdown_ms": 5000,
    }
    return read_spec(**{**given, **options})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("one_for_one", "one_for_one"),
        (" Rest-For-One ", "rest_for_one"),
        ("ONE FOR ALL", "one_for_all"),
        ("escalate", "escalate_to_parent"),
        ("escalate-to-parent", "escalate_to_parent"),
    ],
)
def test_a_strategy_is_read_however_it_is_spelt(written: str, meant: str) -> None:
    assert read_strategy(written) == meant


def test_a_misspelt_strategy_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'one_for_one'"):
        read_strategy("one_for_on")


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sometimes"},
        {"mode": None},
        {"max_restarts": -1},
        {"max_restarts": True},
        {"max_restarts": 1.5},
        {"window_ms": -1},
        {"window_ms": "soon"},
        {"window_ms": None},
        {"backoff_ms": float("nan")},
        {"factor": 0.5},
        {"factor": float("inf")},
        {"factor": 10**400},
        {"factor": True},
        {"factor": "2"},
        {"jitter_ms": False},
        {"max_backoff_ms": []},
        {"circuit_open_ms": -5},
    ],
)
def test_a_bad_policy_is_refused_by_the_name_of_its_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as refused:
        Restart(**options)

    assert refused.value.option == next(iter(options))


def test_durations_may_carry_their_unit() -> None:
    read = Restart(window_ms="5m", backoff_ms="1s", circuit_open_ms="1h")

    assert (read.window_ms, read.backoff_ms, read.circuit_open_ms) == (300_000, 1000, 3_600_000)


def test_a_bare_word_sets_only_the_mode() -> None:
    assert read_restart("On-Failure") == Restart(mode="on_failure")
    assert read_restart("always") == Restart(mode="always")


def test_a_mapping_is_read_by_field_and_a_misspelt_one_refused() -> None:
    assert read_restart({"mode": "always", "max_restarts": 10}).max_restarts == 10
    with pytest.raises(InvalidOption, match="did you mean 'max_restarts'"):
        read_restart({"max_restart": 10})


@pytest.mark.parametrize("children", [[], (), None, 3, "abc", {"name": "a"}, ["a"], [None]])
def test_a_supervisor_needs_children(children: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        spec(children=children)

    assert refused.value.option == "children"


def test_two_children_may_not_share_a_name() -> None:
    with pytest.raises(InvalidOption, match="a different name for each child"):
        spec(children=[Child("a", task), Child("a", task)])


def test_a_child_may_be_written_as_a_mapping() -> None:
    [read] = spec(children=[{"name": "a", "task": task, "restart": {"mode": "never"}}]).children

    assert (read.name, read.kind, read.policy.mode) == ("a", "task", "never")
    with pytest.raises(InvalidOption, match="did you mean 'restart'"):
        spec(children=[{"name": "a", "task": task, "restar": "never"}])
    with pytest.raises(InvalidOption, match="'task'"):
        spec(children=[{"name": "a"}])


def test_the_supervisors_policy_is_the_default_of_its_children() -> None:
    read = spec(
        children=[Child("a", task), Child("b", task, restart="never")], restart={"mode": "always"}
    )

    assert [child.policy.mode for child in read.children] == ["always", "never"]


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 129},
        {"name": 7},
        {"task": "run"},
        {"task": lambda: None},
        {"task": lambda ctx, more: None},
        {"kind": None},
        {"restart": 3},
        {"active_lease": 5},
        {"active_lease": ""},
    ],
)
def test_a_bad_child_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Child(**{"name": "a", "task": task, **fields})


@pytest.mark.parametrize("shutdown", [-1, "x", None, True, float("nan")])
def test_a_bad_shutdown_time_is_refused(shutdown: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        spec(shutdown_ms=shutdown)

    assert refused.value.option == "shutdown_ms"


def test_a_lease_has_a_name_and_a_time_to_live() -> None:
    assert Child("a", task, active_lease="persona").active_lease == Lease("persona", 10_000)
    with pytest.raises(InvalidOption):
        Lease("persona", ttl_ms=5)


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([])
)


@given(st.dictionaries(st.sampled_from([*Restart.__slots__, "restarts"]), anything))
@settings(deadline=None)
def test_whatever_is_given_is_read_or_refused(given: dict[str, Any]) -> None:
    try:
        read = read_restart(given)
    except InvalidOption:
        return
    assert read.policy.mode in ("never", "on_failure", "always")
