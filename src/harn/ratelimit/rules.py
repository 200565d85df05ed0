"""The rules that callers have named for one key: how long each is in force, and which rows count.

A rule is a limit and a span: at most *limit* units in any *span*. Every rule that a request has
named holds for all callers. It stays in force until the longest span in force has passed since the
last request that named it, granted or not. A rule that another one implies is not kept.

Nothing here awaits, reads a clock or uses a store. Times are whole microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_RULES = 32
"""Rules that a bucket keeps. Beyond that, the two named longest ago become one stricter rule."""

Row = tuple[int, int, int]
"""A charged row as it is stored: its number, the time it expires, its units."""


@dataclass(slots=True, eq=False)
class Rule:
    """At most *limit* units in any *span*, last named at *named*.

    *live* is the sum of the rows that count for it, *head* the oldest of these rows, *head_us* the
    time when that row stops counting.
    """

    limit: int
    span: int
    named: int
    live: int = 0
    head: int = 0
    head_us: int = 0

    def drop_expired(self, rows: Iterable[Row], now: int, lag: int) -> bool:
        """Stop counting those of *rows* that have left the span; the first of *rows* is the head.

        A row leaves the span *lag* before the time that it is stored with. False when all of
        them have left, so that the following rows must be read too.
        """
        for number, expires, units in rows:
            if expires - lag > now:
                self.head_us = expires - lag
                return True
            self.live -= units
            self.head = number + 1
        return False

    def implies(self, other: Rule) -> bool:
        """Tell whether *other* cannot be broken while this rule is in force and kept."""
        return self.limit <= other.limit and self.span >= other.span and self.named >= other.named


def ends(rules: Sequence[Rule]) -> list[tuple[int, Rule]]:
    """Return when each of *rules* ends, first to last, if none of them is named again.

    A rule with a short span stays in force for the longest span:

    >>> [at for at, _ in ends([Rule(5, 1000, named=0), Rule(40, 20_000, named=100)])]
    [20000, 20100]
    """
    left = sorted(rules, key=lambda rule: rule.named)
    found: list[tuple[int, Rule]] = []
    at = 0
    for number, rule in enumerate(left):
        at = max(at, rule.named + max(each.span for each in left[number:]))
        found.append((at, rule))
    return found


def without_implied(rules: Sequence[Rule], newest: Rule) -> list[Rule]:
    """Return *rules* without those that *newest*, one of them, implies; `MOST_RULES` at the most.

    >>> newest = Rule(5, 1000, named=7)
    >>> without_implied([Rule(6, 1000, named=3), newest, Rule(4, 10, named=1)], newest)[1:]
    [Rule(limit=4, span=10, named=1, live=0, head=0, head_us=0)]
    """
    kept = [rule for rule in rules if rule is newest or not newest.implies(rule)]
    while len(kept) > MOST_RULES:
        first, second = sorted(kept, key=lambda rule: rule.named)[:2]
        longer, shorter = (first, second) if first.span >= second.span else (second, first)
        longer.limit = min(first.limit, second.limit)
        longer.named = max(first.named, second.named)
        kept.remove(shorter)
    return kept


def read_rules(text: str, longest: Rule) -> list[Rule]:
    """Return the rules of a bucket that has several: *longest*, and those written in *text*.

    A rule that an earlier version wrote has no sum: it begins with that of the longest.
    """
    first, *parts = text.split(";")
    if "," in first:  # written by an earlier version: no time of *longest*, and no sums
        parts = [first, *parts]
    else:
        longest.named = int(first)
    rules = [longest]
    for part in parts:
        limit, span, named, *sums = map(int, part.split(","))
        if sums:
            rules.append(Rule(limit, span, named, *sums))
        else:
            rules.append(Rule(limit, span, named - span, longest.live, longest.head, 0))
    return rules


def write_rules(named: int, others: Iterable[Rule]) -> str:
    """Return *others* as text, after the time *named* when the longest rule was last named."""
    parts = [
        f"{rule.limit},{rule.span},{rule.named},{rule.live},{rule.head},{rule.head_us}"
        for rule in others
    ]
    return ";".join([str(named), *parts])
