"""JSON that reads back as the same value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn.exact_json import from_exact_json, to_exact_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=200)
@given(JSON)
def test_json_is_written_only_if_it_reads_back_as_the_same_value(value: Any) -> None:
    written = to_exact_json(value)

    if written is None:
        assert "inf" in repr(value)
    else:
        assert from_exact_json(written) == value
        assert repr(from_exact_json(written)) == repr(value)


@pytest.mark.parametrize(
    "value", [(1,), {1: 2}, float("nan"), float("inf"), object(), b"x", {1}, [(1,)]]
)
def test_what_json_would_change_is_not_written(value: Any) -> None:
    assert to_exact_json(value) is None


def test_an_int_of_too_many_digits_is_not_written() -> None:
    assert to_exact_json([10**5000]) is None


@pytest.mark.parametrize("value", ["\ud800", {"a\udfff": 1}, ["\udc80", 10**400], ["\U0001f600"]])
def test_a_lone_surrogate_which_no_record_can_hold_is_not_written(value: Any) -> None:
    written = to_exact_json(value)

    assert (written is None) == (value != ["\U0001f600"])


def test_what_nests_too_deep_is_not_written() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]

    assert to_exact_json(value) is None
