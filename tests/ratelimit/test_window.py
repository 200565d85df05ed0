"""The window's arithmetic, against a model that recomputes everything from every admission."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn.ratelimit import rules as rules_module
from harn.ratelimit.rules import Row, Rule, ends
from harn.ratelimit.window import Window, open_window, time_freed
from tests.ratelimit.rulesmodel import RulesModel

EMPTY = (1, "k", 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, "", 1, b"")


@dataclass
class Bucket:
    """A window with its rows in a list, read a page at a time as a store would."""

    page: int = 2
    rows: dict[int, Row] = field(default_factory=dict)
    stored: tuple[Any, ...] = EMPTY

    def at(self, now: int) -> Window:
        window = open_window(self.stored)
        shift, cut = window.settle_in(now)
        self.shift(shift)
        if cut is not None:
            self.rows = {n: (n, min(at, cut), units) for n, at, units in self.rows.values()}
        if window.has_expired(now):
            while not window.drop_expired(self.from_(window.head), now):
                pass
        self.expire_others(window, now)
        return window

    def shift(self, by: int) -> None:
        self.rows = {n: (n, at + by, units) for n, at, units in self.rows.values()}

    def expire_others(self, window: Window, now: int) -> None:
        for rule, lag in window.behind(now):
            while rule.head != window.next:
                if rule.drop_expired(self.from_(rule.head), now, lag):
                    break

    def from_(self, first: int) -> list[Row]:
        rows = [self.rows[n] for n in range(first, first + self.page) if n in self.rows]
        assert rows, "walked past the end"
        return rows

    def keep(self, window: Window) -> None:
        state = window.state
        self.stored = (state[0], "k", *state[1:])

    def ask(self, units: int, limit: int, span: int, now: int) -> int | None:
        """Charge and return None, or return the instant at which it may fit."""
        window = self.at(now)
        if not window.name(limit, span, now):
            self.shift(window.add_rule(limit, span, now))
            self.expire_others(window, now)
        charge, until = min(units, limit), None
        if window.has_room(charge):
            row = window.take(charge, now)
            self.rows[row[0]] = row
        else:
            until = max(
                min(end, self.frees(rule.head, lacking) - window.span + rule.span)
                for rule, end, lacking in window.lacking(charge)
            )
        self.keep(window)
        return until

    def frees(self, first: int, lacking: int) -> int:
        frees = None
        while frees is None:
            page = self.from_(first)
            frees, lacking = time_freed(page, lacking)
            first = page[-1][0] + 1
        return frees

    def settle(self, number: int, to: int, now: int) -> bool:
        window = self.at(now)
        if number < window.head:
            self.keep(window)
            return False
        _, expires, units = self.rows[number]
        window.correct(number, units, to)
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
def test_R1_one_rule_admits_exactly_what_the_model_admits(
    steps: Any, limit: int, span: int, page: Any
) -> None:
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


rules = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 30)), min_size=2, max_size=4)
two_rule_steps = st.lists(
    st.tuples(
        st.integers(0, 12),  # time since the last step
        st.integers(0, 3),  # which rule
        st.integers(1, 9),  # units
        st.none() | st.tuples(st.integers(0, 5), st.integers(0, 9)),  # settle one of the last
    ),
    min_size=1,
    max_size=80,
)


@settings(deadline=None, max_examples=500)
@given(rules, two_rule_steps, st.integers(1, 5))
def test_R6_every_rule_named_holds_for_all_exactly_as_the_model_says(
    rules: Any, steps: Any, page: Any
) -> None:
    bucket, model, now = Bucket(page), RulesModel(), 0

    for passed, which, units, settle in steps:
        now += passed
        limit, span = rules[which % len(rules)]

        until = bucket.ask(units, limit, span, now)

        assert (until is None) == model.ask(units, limit, span, now)
        assert until is None or now < until <= now + max(span for _, span in rules)
        if settle is not None and model.admitted:
            counting = open_window(bucket.stored).next - len(model.admitted)
            place = max(0, len(model.admitted) - 1 - settle[0])
            assert bucket.settle(counting + place, settle[1], now)
            model.admitted[place][1] = settle[1]


@settings(deadline=None, max_examples=300)
@given(rules, two_rule_steps)
def test_R6_no_span_of_any_rule_holds_more_than_its_limit_while_it_is_in_force(
    rules: Any, steps: Any
) -> None:
    bucket, model, now = Bucket(), RulesModel(), 0
    granted: list[tuple[int, int]] = []
    began: dict[tuple[int, int], int] = {}

    for passed, which, units, _ in steps:
        now += passed
        limit, span = rule = rules[which % len(rules)]
        began = {each: at for each, at in began.items() if each in model.in_force(now)}
        began.setdefault(rule, len(granted))
        model.ask(units, limit, span, now)
        before = open_window(bucket.stored).next
        if bucket.ask(units, limit, span, now) is None:
            granted.append((now, bucket.rows[before][2]))

        for (limit, span), since in began.items():
            assert sum(n for at, n in granted[since:] if now - span < at) <= limit


def test_R6_five_a_second_and_forty_in_twenty_seconds_hold_together() -> None:
    bucket, second, granted = Bucket(page=16), 1_000, []

    for now in range(0, 60 * second, 50):
        for limit, span in ((40, 20 * second), (5, second)):
            if bucket.ask(1, limit, span, now) is None:
                granted.append(now)

    for first in granted:
        assert sum(first <= at < first + second for at in granted) <= 5
        assert sum(first <= at < first + 20 * second for at in granted) <= 40
    assert len(granted) == 3 * 40


def test_R6_a_rule_that_was_only_refused_holds_for_the_others() -> None:
    bucket = Bucket()
    bucket.ask(5, limit=5, span=10, now=0)
    assert bucket.ask(1, limit=5, span=10, now=9) == 10

    assert bucket.ask(6, limit=40, span=20, now=12) is None
    assert open_window(bucket.stored).live == 5, "five at most"
    assert bucket.ask(1, limit=40, span=20, now=13) == 22


def test_R6_a_short_rule_holds_for_the_longest_span_since_it_was_named() -> None:
    bucket = Bucket()
    bucket.ask(1, limit=40, span=200, now=0)
    bucket.ask(1, limit=2, span=10, now=1)

    assert bucket.ask(40, limit=40, span=200, now=150) is None
    assert open_window(bucket.stored).live == 4, "two of the two a ten-span allows"
    assert bucket.ask(1, limit=40, span=200, now=155) == 160
    assert bucket.ask(3, limit=40, span=200, now=201) is None
    assert open_window(bucket.stored).next == 5


def test_R6_units_are_kept_as_long_as_the_longest_span_in_force() -> None:
    bucket = Bucket()
    bucket.ask(3, limit=3, span=10, now=0)
    assert bucket.ask(1, limit=4, span=100, now=9) == 10
    assert bucket.ask(1, limit=3, span=10, now=20) is None

    assert bucket.ask(1, limit=3, span=10, now=99) == 100, "four in the hundred since 0"


def test_more_rules_than_are_kept_become_stricter_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "MOST_RULES", 4)
    bucket = Bucket()
    for number in range(1, 50):
        bucket.ask(1, limit=number, span=1000 - number, now=number)

    window = open_window(bucket.stored)
    assert len(window.rules()) == 4
    assert (window.most, window.span) == (1, 999)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(-3600, 3600), st.integers(1, 9)), max_size=50),
    st.integers(1, 8),
    st.integers(1, 60),
)
def test_R5_whatever_the_clock_does_no_caller_waits_longer_than_a_window(
    steps: Any, limit: int, span: int
) -> None:
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


def test_R6_the_smaller_limit_counts_for_a_caller_with_a_larger_one() -> None:
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


def test_rules_are_read_as_they_were_written() -> None:
    bucket = Bucket()
    for limit, span, now in ((5, 1000, 0), (40, 20_000, 1), (7, 3000, 2)):
        bucket.ask(1, limit, span, now)

    found = {(each.limit, each.span, each.named) for each in open_window(bucket.stored).rules()}
    assert found == {(5, 1000, 0), (40, 20_000, 1), (7, 3000, 2)}


def test_rules_of_an_earlier_version_hold_with_sums_that_are_found_again() -> None:
    bucket = Bucket()
    for now in range(3):
        bucket.ask(1, limit=40, span=1000, now=now * 100)
    bucket.stored = (*bucket.stored[:9], 40, 1000, 1200, "2,50,240", *bucket.stored[13:])

    window = bucket.at(210)

    assert {(rule.limit, rule.live) for rule in window.rules()} == {(40, 3), (2, 1)}


def test_a_rule_ends_when_the_longest_of_those_left_has_passed_since_it_was_named() -> None:
    long, short = Rule(40, 20, named=0), Rule(5, 1, named=10)

    assert [(at, rule.limit) for at, rule in ends([short, long])] == [(20, 40), (20, 5)]


def test_a_new_bucket_has_no_rules() -> None:
    assert open_window(EMPTY).rules() == []
