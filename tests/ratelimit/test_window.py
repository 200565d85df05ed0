"""The window's arithmetic, against a model that recomputes everything from every admission."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings, strategies as st

from harn.ratelimit.window import (
    Row,
    Rule,
    Window,
    open_window,
    read_rules,
    time_freed,
    write_rules,
)

EMPTY = (1, "k", 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, "", 1, b"")


@dataclass
class Bucket:
    """A window with its rows in a list, read a page at a time as a store would."""

    page: int = 2
    rows: dict[int, Row] = field(default_factory=dict)
    stored: tuple = EMPTY

    def at(self, now: int) -> Window:
        window = open_window(self.stored)
        cut = window.settle_in(now)
        if cut is not None:
            self.rows = {n: (n, min(at, cut), units) for n, at, units in self.rows.values()}
        if window.has_expired(now):
            while not window.drop_expired(self.from_(window.head), now):
                pass
        return window

    def from_(self, first: int) -> list[Row]:
        rows = [self.rows[n] for n in range(first, first + self.page) if n in self.rows]
        assert rows, "walked past the end"
        return rows

    def keep(self, window: Window) -> None:
        state = window.state
        self.stored = (state[0], "k", *state[1:])

    def ask(self, units: int, limit: int, span: int, now: int) -> int | None:
        """Charge and return None, or return the instant at which it would fit."""
        window = self.at(now)
        lacking = window.lacking(min(units, limit), limit, span)
        frees = None
        if lacking:
            first = window.head
            while frees is None:
                page = self.from_(first)
                frees, lacking = time_freed(page, lacking)
                first = page[-1][0] + 1
        else:
            row = window.take(min(units, limit), limit, span, now)
            self.rows[row[0]] = row
        self.keep(window)
        return frees

    def settle(self, number: int, to: int, now: int) -> bool:
        window = self.at(now)
        if number < window.head:
            self.keep(window)
            return False
        _, expires, units = self.rows[number]
        window.correct(units, to)
        self.rows[number] = (number, expires, to)
        self.keep(window)
        return True


@dataclass
class Model:
    """Every admission ever, as [when, units]; nothing is kept that can be recomputed."""

    limit: int
    span: int
    admitted: list[list[int]] = field(default_factory=list)

    def used(self, now: int) -> int:
        return sum(units for at, units in self.admitted if at <= now < at + self.span)

    def fits(self, units: int, now: int) -> bool:
        return self.used(now) + min(units, self.limit) <= self.limit or self.used(now) == 0

    def ask(self, units: int, now: int) -> int | None:
        if self.fits(units, now):
            self.admitted.append([now, min(units, self.limit)])
            return None
        return next(at for at in range(now + 1, now + self.span + 1) if self.fits(units, at))


steps = st.lists(
    st.tuples(
        st.integers(0, 12),  # time since the last step
        st.integers(1, 9),  # units
        st.none() | st.tuples(st.integers(0, 5), st.integers(0, 9)),  # settle one of the last
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=300)
@given(steps, st.integers(1, 8), st.integers(1, 30), st.integers(1, 5))
def test_R1_one_rule_admits_exactly_what_the_model_admits(steps, limit, span, page) -> None:
    bucket, model, now = Bucket(page), Model(limit, span), 0

    for passed, units, settle in steps:
        now += passed

        assert bucket.ask(units, limit, span, now) == model.ask(units, now)

        if settle is not None and model.admitted:
            number = max(1, len(model.admitted) - settle[0])
            row = model.admitted[number - 1]
            in_time = now < row[0] + span
            assert bucket.settle(number, min(settle[1], limit), now) == in_time
            if in_time:
                row[1] = min(settle[1], limit)


rules = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 30)), min_size=2, max_size=3)


@settings(deadline=None, max_examples=300)
@given(
    rules,
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=80
    ),
)
def test_R6_whoever_asks_for_a_stricter_rule_gets_it_from_everybody(rules, steps) -> None:
    bucket, now, admitted = Bucket(), 0, []

    for passed, which, units in steps:
        now += passed
        limit, span = rules[which % len(rules)]
        before = open_window(bucket.stored).next
        if bucket.ask(units, limit, span, now) is None:
            admitted.append((now, bucket.rows[before][2], limit, span))

    for rule in set(rules):
        for first in range(len(admitted)):
            assert sum(granted_under(rule, admitted, first)) <= rule[0]


def granted_under(rule, admitted, first) -> list[int]:
    """What was granted in the span after *first*, for as long as *rule* was in force."""
    span = rule[1]
    in_force_until, found = 0, []
    for number, (at, units, *asked) in enumerate(admitted):
        if tuple(asked) == rule:
            if number >= first and at >= in_force_until and found:
                break  # it had run out and begins anew
            in_force_until = at + span
        elif number >= first and at >= in_force_until:
            break
        if number >= first and at < admitted[first][0] + span:
            found.append(units)
    return found


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(-3600, 3600), st.integers(1, 9)), max_size=50),
    st.integers(1, 8),
    st.integers(1, 60),
)
def test_R5_whatever_the_clock_does_nobody_waits_longer_than_a_window(steps, limit, span) -> None:
    bucket, now = Bucket(), 10_000

    for jump, units in steps:
        now += jump
        frees = bucket.ask(units, limit, span, now)

        assert frees is None or now < frees <= now + span
        assert open_window(bucket.stored).live <= limit


def test_a_row_frees_exactly_one_window_after_its_charge() -> None:
    bucket = Bucket()

    assert bucket.ask(1, limit=1, span=1000, now=5) is None
    assert bucket.ask(1, limit=1, span=1000, now=1004) == 1005
    assert bucket.ask(1, limit=1, span=1000, now=1005) is None


def test_R4_an_oversize_charge_waits_for_an_empty_window_and_fills_it() -> None:
    bucket = Bucket()
    bucket.ask(1, limit=5, span=100, now=0)

    assert bucket.ask(50, limit=5, span=100, now=10) == 100
    assert bucket.ask(50, limit=5, span=100, now=100) is None
    assert open_window(bucket.stored).live == 5
    assert bucket.ask(1, limit=5, span=100, now=199) == 200


def test_R6_a_short_window_frees_nothing_that_a_long_one_holds() -> None:
    bucket = Bucket()
    bucket.ask(5, limit=5, span=3600, now=0)

    assert bucket.ask(1, limit=5, span=1, now=10) == 3600


def test_R6_a_short_row_counts_for_the_long_span_that_is_in_force() -> None:
    bucket = Bucket()
    for now, span in ((0, 60), (20, 60), (30, 1), (60, 60)):
        assert bucket.ask(1, limit=3, span=span, now=now) is None

    assert bucket.ask(1, limit=3, span=60, now=80) is None
    assert bucket.ask(1, limit=3, span=60, now=80) == 90


def test_R6_the_smaller_limit_counts_for_whoever_asks_with_a_larger_one() -> None:
    bucket = Bucket()
    bucket.ask(5, limit=5, span=100, now=0)

    assert bucket.ask(1, limit=100, span=100, now=1) == 100
    assert bucket.ask(1, limit=100, span=100, now=100) is None


def test_R6_what_is_oversize_for_the_stricter_rule_charges_one_full_window_of_it() -> None:
    bucket = Bucket()
    bucket.ask(3, limit=5, span=100, now=0)
    bucket.settle(1, 0, now=1)

    assert bucket.ask(8, limit=10, span=100, now=2) is None
    assert open_window(bucket.stored).live == 5


def test_a_raised_limit_counts_one_window_after_the_last_grant_of_the_old_one() -> None:
    bucket = Bucket()
    for now in range(0, 100, 20):
        bucket.ask(1, limit=5, span=100, now=now)

    assert [bucket.ask(1, limit=50, span=100, now=now) for now in (100, 120, 140)] == [None] * 3
    assert [bucket.ask(9, limit=50, span=100, now=now) for now in (181, 182)] == [None, None]


def test_S21_rows_from_the_far_future_hold_for_one_window_and_no_longer() -> None:
    bucket = Bucket()
    bucket.ask(5, limit=5, span=100, now=4_000_000_000)

    assert bucket.ask(1, limit=5, span=100, now=50) == 150
    assert bucket.ask(1, limit=5, span=100, now=150) is None


def test_a_pause_is_never_cut_short_by_a_shorter_one() -> None:
    window = open_window(EMPTY)

    window.pause(100)
    window.pause(50)

    assert window.paused_us == 100


@pytest.mark.parametrize("rules", [[Rule(5, 60, 61)], [Rule(1, 2, 3), Rule(4, 5, 6)]])
def test_rules_are_read_as_they_were_written(rules) -> None:
    assert read_rules(*rules[-1], write_rules(rules[:-1])) == rules


def test_a_new_bucket_has_no_rules() -> None:
    assert read_rules(0, 0, 0, "") == []
