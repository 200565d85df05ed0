from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from harn import InvalidOption
from harn.duration import to_ms, to_seconds, to_text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30),
        ("2m", 120),
        ("1h", 3600),
        ("7d", 604_800),
        ("1w", 604_800),
        ("1.5h", 5400),
        (" 5s ", 5),
        (3, 3),
        (0.5, 0.5),
        (0, 0),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_duration_is_read_as_people_write_it(value: Any, seconds: float) -> None:
    assert to_seconds(value) == seconds


def test_a_bare_number_takes_its_unit_from_the_options_name() -> None:
    assert to_seconds(250, "timeout_ms") == 0.25
    assert to_seconds(250, "timeout") == 250
    assert to_seconds("250ms", "timeout_ms") == 0.25


@pytest.mark.parametrize(
    "value",
    [
        "5x", "5", "", "ms", "-1s", "1e3ms", "5 s", "٣s", "1h30m", "1__0s", "0x10s", "9" * 40 + "d",
        -1, -0.5, math.nan, math.inf, -math.inf, 10**400, True, False, None, [], {}, b"5s",
        timedelta(seconds=-1), "101000d",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_options_name(value: Any) -> None:
    with pytest.raises(InvalidOption, match="stale_after_ms") as caught:
        to_seconds(value, "stale_after_ms")

    assert caught.value.option == "stale_after_ms"
    assert len(str(caught.value)) < 400


def test_milliseconds_round_up_so_that_a_wait_is_never_cut_short() -> None:
    assert to_ms(0.0001) == 1
    assert to_ms(0.25) == 250
    assert to_ms("1.001s") == 1001


@given(st.integers(min_value=0, max_value=10**9))
def test_text_is_read_back_as_it_was_written(ms: int) -> None:
    assert to_ms(to_text(ms / 1000)) == ms
