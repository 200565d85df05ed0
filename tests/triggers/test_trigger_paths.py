"""Dotted paths and the coercions of what they find."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption
from harn.triggers.event import (
    MISSING,
    MOST_PRIORITY,
    as_gate_key,
    as_key,
    as_priority,
    check_path,
    event_from,
    find,
)
from tests.triggers.trigger_events import an_event

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("provider_payload.payload.a.0.b", 7),
        ("provider_payload.payload.a.1", "x"),
        ("provider_payload.payload.none", None),
        ("provider_payload.payload.0", "zero"),
        ("occurred_at_date", "2026-01-01"),
        ("batch.0.id", "inner"),
    ],
)
def test_a_path_finds_keys_positions_and_fields(path: str, found: Any) -> None:
    payload = {"a": [{"b": 7}, "x"], "none": None, "0": "zero"}
    event = an_event(provider_payload={"payload": payload}, batch=(an_event(id="inner"),))

    assert event.get(path, "default") == found


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "a..b",
        "a.",
        ".a",
        "a.2",
        "a.-1",
        "a.²",
        "a." + "9" * 5000,
        "a[0]",
        "__class__",
        "get",
        "a.0.b.c",
    ],
)
def test_a_path_that_leads_nowhere_gives_the_default(path: str) -> None:
    assert an_event(provider_payload={}).get(f"provider_payload.{path}", "-") == "-"
    assert find({"a": [{"b": 7}]}, path) is MISSING
    assert an_event().get(path, "-") == "-"


@settings(deadline=None, max_examples=200)
@given(json_values, st.text(max_size=12))
def test_no_value_and_no_path_makes_find_raise(value: Any, path: str) -> None:
    found = find(value, path)

    assert isinstance(as_priority(found), int | None)
    assert isinstance(as_key(found), str | None)
    assert isinstance(as_gate_key(found), str)


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (7, 7), (-3, -3), (7.9, 7), (-7.9, -7), ("7", 7), (" 7 ", 7), ("-2", -2), ("7.9", 7),
        (True, 1), (False, 0),
        (10**30, MOST_PRIORITY), (math.inf, MOST_PRIORITY), (-math.inf, -MOST_PRIORITY),
        (None, None), ("high", None), ("", None), ("٧", None), ("1e9", None), ([1], None),
        ({}, None), (math.nan, None),
        ("9" * 5000, None), (MISSING, None),
    ],
)  # fmt: skip
def test_T4_what_is_found_becomes_a_priority_or_nothing(value: Any, priority: int | None) -> None:
    assert as_priority(value) == priority


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("acme", "acme"),
        ("", ""),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (None, None),
        ([1], None),
        ({}, None),
    ],
)
def test_scalars_become_keys_and_nothing_else_does(value: Any, key: str | None) -> None:
    assert as_key(value) == key


@settings(deadline=None, max_examples=100)
@given(json_values)
def test_a_gate_key_is_the_same_for_equal_values(value: Any) -> None:
    assert as_gate_key(value) == as_gate_key(value)
    assert isinstance(as_gate_key(value), str)


def test_an_event_survives_being_written_down() -> None:
    event = an_event(
        provider_payload={"payload": {"a": [1, None]}}, tenant_id="acme", batch=(an_event(),)
    )

    assert event_from(event.as_dict()) == event
    assert "trace_id" not in event.as_dict()


@pytest.mark.parametrize("record", [{}, {"id": 1}, {"id": "x", "provider": None}])
def test_a_record_that_is_no_event_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a trigger event"):
        event_from(record)


@pytest.mark.parametrize("path", ["", "a..b", ".", 5, "x" * 600])
def test_a_bad_path_is_named(path: Any) -> None:
    with pytest.raises(InvalidOption, match="key_from"):
        check_path("key_from", path)
