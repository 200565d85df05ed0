"""Operations on a bucket's window that need its rows in the store: expire, correct, look ahead.

`window.py` has the arithmetic. The operations here read the rows that it needs, a page at a time,
and write the few that change.
"""

from __future__ import annotations

from harn.ratelimit.records import Correction, Want
from harn.ratelimit.rules import Row, Rule
from harn.ratelimit.window import Window, time_freed
from harn.storage import Operation, limits

PAGE, LARGEST_PAGE = 16, 1024
"""Rows that the first statement reads, and the most that one statement reads."""
MOST_ROWS = 4096
"""Rows read to tell when there will be room; with more, the answer is too early, never too late."""


def bring_up_to_date(window: Window, now: int) -> Operation[None]:
    """Drop the rules of *window* that have ended at *now*, and the rows that have expired."""
    shift, cut = window.settle_in(now)
    yield from _shift(window, shift)
    if cut is not None and window.head < window.spilled:
        yield from limits.cut_back(window.id, cut)
    if window.has_expired(now):
        yield from _expire(window, now)
    yield from _expire_others(window, now)


def add_rule(window: Window, want: Want, now: int) -> Operation[None]:
    """Put the rule of *want*, which *window* does not have yet, in force."""
    shift = window.add_rule(want.limit, want.span, now, replaces=want.replaces)
    yield from _shift(window, shift)
    yield from _expire_others(window, now)


def correct_row(window: Window, correction: Correction) -> Operation[tuple[int, int] | None]:
    """Correct the units of a charged row; return the row, or None if it no longer counts."""
    _, bucket, seq, _, units = correction
    if seq is None or window.id != bucket or seq < window.head:
        return None
    found = yield from _rows(window, seq, 1)
    if not found or found[0][0] != seq:
        return None
    window.correct(seq, found[0][2], units)
    if seq >= window.spilled:
        window.set_own(seq, units)
    else:
        yield from limits.correct(bucket, seq, units)
    return bucket, seq


def freed_at(window: Window, rule: Rule, lacking: int) -> Operation[int]:
    """Return when *lacking* of the units that count for *rule* will have left its span."""
    lag = window.span - rule.span
    if lacking >= rule.live:
        last = window.own_last()
        if last is None:
            last = yield from limits.last_expiry(window.id, rule.head)
        return (window.tail_us if last is None else last) - lag
    first, count, walked = rule.head, PAGE, 0
    while True:
        rows = yield from _rows(window, first, count)
        frees, lacking = time_freed(rows, lacking)
        if frees is not None:
            return frees - lag
        walked += len(rows)
        if not rows:
            return window.tail_us - lag
        if walked >= MOST_ROWS:
            return rows[-1][1] - lag
        first, count = rows[-1][0] + 1, min(count * 4, LARGEST_PAGE)


def _shift(window: Window, shift: int) -> Operation[None]:
    if shift and window.head < window.spilled:
        yield from limits.shift(window.id, window.head, shift)


def _expire(window: Window, now: int) -> Operation[None]:
    count = PAGE
    while True:
        rows = yield from _rows(window, window.head, count)
        if not rows:
            window.clear()
            return
        if window.drop_expired(rows, now):
            return
        count = min(count * 4, LARGEST_PAGE)


def _expire_others(window: Window, now: int) -> Operation[None]:
    for rule, lag in window.behind(now):
        count = PAGE
        while rows := (yield from _rows(window, rule.head, count)):
            if rule.drop_expired(rows, now, lag):
                break
            count = min(count * 4, LARGEST_PAGE)
        window.changed = True


def _rows(window: Window, first: int, count: int) -> Operation[list[Row]]:
    """Read rows from number *first* on: those in rows of their own, then those in the bucket."""
    if first < window.spilled:
        rows = yield from limits.rows_from(window.id, first, count)
        if rows:
            return rows
    return window.own_rows(first, count)
