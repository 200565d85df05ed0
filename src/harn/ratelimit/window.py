"""The arithmetic of a sliding window: units in use, room for more, and when there will be room.

A bucket is a queue of charged rows, numbered without gaps, each with the time when it expires. A
row that is charged later never expires earlier, so rows expire at the head of the queue only, and
the sum of the rows that count is kept instead of computed again. Charging, expiring and refusing
cost the same with ten rows in the window as with a hundred thousand.

A request that names the key with another limit or span adds a *rule*, and every rule holds for all
callers (`rules.py`). A row is kept for the longest span in force, which is the bucket's own; it
leaves a shorter span earlier, by the difference. Each of the other rules has its own head and its
own sum. When the longest span changes, the time with which each row is stored is shifted by the
same amount. Nearly all buckets have one rule.

The last few rows are stored in the bucket's own record. When there are enough of them, they are
written out together as rows of their own. So a charge changes one record, not two.

If the clock was set back, rows would expire too late. No row may count for longer than one span
from now, so its time is reduced to that: nothing is granted too early, and no caller waits longer
than a window.

Nothing here awaits, reads a clock or uses a store. Times are whole microseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harn.ratelimit.rules import Row, Rule, ends, read_rules, without_implied, write_rules

LONGEST_PAUSE = 3_600_000_000
"""An hour: no provider makes callers wait longer, and no damaged store does."""

SPILL = 32
"""Rows in the bucket's own record, after which they are written out."""

OWN = struct.Struct("<qq")
"""A row in the bucket's own record: the time it expires, its units."""


class Window:
    """One bucket at one instant; `open_window` reads it, and `state` is what to store."""

    __slots__ = (
        "changed",
        "head",
        "head_us",
        "id",
        "kept",
        "key",
        "limit",
        "live",
        "named",
        "next",
        "others",
        "paused_us",
        "recent",
        "span",
        "spilled",
        "tail_us",
    )

    def __init__(
        self,
        id: int,
        key: str,
        live: int,
        kept: int,
        head: int,
        next: int,
        head_us: int,
        tail_us: int,
        paused_us: int,
        limit: int,
        span: int,
        until: int,
        others: str,
        spilled: int,
        recent: bytes,
    ) -> None:
        self.id: int = id
        self.key: str = key
        self.live: int = live
        """Units charged and not expired."""
        self.kept: int = kept
        """The oldest row that the store still holds."""
        self.head: int = head
        """The oldest row that counts; *next* when none does."""
        self.next: int = next
        self.head_us: int = head_us
        """When the head expires."""
        self.tail_us: int = tail_us
        """When the newest row expires."""
        self.paused_us: int = paused_us
        """Nothing is granted before this time, because a provider asked to wait."""
        self.limit: int = limit
        self.span: int = span
        """With *limit* the rule with the longest span in force; both are 0 without any."""
        self.named: int = until - span
        """When that rule was last named."""
        self.others: list[Rule] = []
        """The other rules in force, none of them with a longer span."""
        if others:
            rules = read_rules(others, self._longest())
            self.span = 0  # so that nothing is shifted: the rows are stored for the longest span
            self._set_rules(rules)
        self.spilled: int = spilled
        """The first row in the bucket's own record."""
        self.recent: bytes = recent
        """The rows from *spilled* on, each packed with `OWN`."""
        self.changed: bool = False

    @property
    def state(self) -> tuple[Any, ...]:
        """The id, then every column but the key, in the order of the constructor."""
        return (
            self.id,
            self.live,
            self.kept,
            self.head,
            self.next,
            self.head_us,
            self.tail_us,
            self.paused_us,
            self.limit,
            self.span,
            self._latest_named() + self.span,
            write_rules(self.named, self.others) if self.others else "",
            self.spilled,
            self.recent,
        )

    def is_settled(self, now: int) -> bool:
        """Tell whether no row has to expire at *now*: the usual case."""
        return (
            now - self.span < self.named <= now
            and self.tail_us <= now + self.span
            and (self.head_us > now or self.head == self.next)
            and not self.others
            and self.paused_us <= now + LONGEST_PAUSE
        )

    def settle_in(self, now: int) -> tuple[int, int | None]:
        """Drop the rules that have ended; without any rule the window is empty.

        Returns by how much the times of the stored rows must be shifted, then the latest time
        that they may have, if some have a later one.
        """
        if self.paused_us > now + LONGEST_PAUSE:
            self.paused_us = now + LONGEST_PAUSE
            self.changed = True
        shift = self._drop_rules(now)
        if not self.limit:
            self.clear()
            return 0, None
        latest = now + self.span
        if self.tail_us <= latest:
            return shift, None
        self.tail_us = latest
        self.head_us = min(self.head_us, latest)
        for rule in self.others:
            rule.head_us = min(rule.head_us, now + rule.span)
        self.recent = b"".join(
            [
                OWN.pack(min(expires, latest), units)
                for expires, units in OWN.iter_unpack(self.recent)
            ]
        )
        self.changed = True
        return shift, latest

    def _drop_rules(self, now: int) -> int:
        if not self.limit:
            return 0
        rules = self.rules()
        for rule in rules:
            rule.named = min(rule.named, now)
        left = [rule for at, rule in ends(rules) if at > now]
        if len(left) == len(rules):
            self.named = rules[0].named
            return 0
        self.changed = True
        return self._set_rules(left)

    def has_expired(self, now: int) -> bool:
        """Tell whether some rows that are counted have expired; if all have, count none."""
        if self.head == self.next or self.head_us > now:
            return False
        if self.tail_us <= now:
            self.clear()
            return False
        return True

    def behind(self, now: int) -> Iterator[tuple[Rule, int]]:
        """Yield each other rule that counts rows which have left its span, and its lag.

        A row leaves the span of the rule that much earlier than it expires.
        """
        for rule in self.others:
            if rule.head != self.next and rule.head_us <= now:
                yield rule, self.span - rule.span

    def drop_expired(self, rows: Iterable[Row], now: int) -> bool:
        """Stop counting those of *rows* that have expired; the first of *rows* is the head.

        False when all of them have, so that the following rows must be read too.
        """
        self.changed = True
        for number, expires, units in rows:
            if expires > now:
                self.head_us = expires
                return True
            self.live -= units
            self.head = number + 1
        return False

    def clear(self) -> None:
        """Count no row."""
        if self.head != self.next or self.live:
            self.head, self.live, self.changed = self.next, 0, True
            self.spilled, self.recent = self.next, b""
            for rule in self.others:
                rule.head, rule.live = self.next, 0

    # -- the rules

    def name(self, limit: int, span: int, now: int) -> bool:
        """Record that a request names this rule now; False if it must be added first."""
        if self.limit == limit and self.span == span:
            if self.named != now:
                self.named = now
                self.changed = True
            return True
        for rule in self.others:
            if rule.limit == limit and rule.span == span:
                if rule.named != now:
                    rule.named = now
                    self.changed = True
                return True
        return False

    def add_rule(self, limit: int, span: int, now: int, *, replaces: bool = False) -> int:
        """Put a new rule in force; return by how much the stored rows must be shifted.

        If it *replaces* the others, they end. Its sum may begin with rows that have left its span:
        see `behind`.
        """
        self.changed = True
        rule = Rule(limit, span, now, self.live, self.head, self.head_us - self.span + span)
        kept = [] if replaces else self.rules()
        return self._set_rules(without_implied([*kept, rule], rule))

    def rules(self) -> list[Rule]:
        """Return all rules in force, the one with the longest span first."""
        return [self._longest(), *self.others] if self.limit else []

    def _longest(self) -> Rule:
        return Rule(self.limit, self.span, self.named, self.live, self.head, self.head_us)

    def _latest_named(self) -> int:
        if not self.others:
            return self.named
        return max([self.named, *(rule.named for rule in self.others)])

    def _set_rules(self, rules: Sequence[Rule]) -> int:
        """Put *rules* in force; return by how much the stored rows must be shifted."""
        before = self.span
        if not rules:
            self.limit = self.span = self.named = 0
            self.others = []
            return 0
        longest = max(rules, key=lambda rule: rule.span)
        self.others = [rule for rule in rules if rule is not longest]
        self.limit, self.span, self.named = longest.limit, longest.span, longest.named
        self.live, self.head, self.head_us = longest.live, longest.head, longest.head_us
        shift = self.span - before if before else 0
        if shift:
            self.tail_us += shift
            rows = OWN.iter_unpack(self.recent)
            self.recent = b"".join([OWN.pack(at + shift, units) for at, units in rows])
        return shift

    # -- room

    @property
    def most(self) -> int:
        """The smallest limit in force, and so the most that a request is charged."""
        if not self.others:
            return self.limit
        return min([self.limit, *(rule.limit for rule in self.others)])

    def has_room(self, charge: int) -> bool:
        """Tell whether *charge* fits now under every rule.

        A charge of a rule's limit or more needs an empty window of that rule.
        """
        if not self.others:
            return self.live + charge <= self.limit or not self.live
        return not self.lacking(charge)

    def has_room_for_all(self, charge: int) -> bool:
        """Tell whether there is room for *charge*, the sum of several requests."""
        return self.live + charge <= self.limit and all(
            rule.live + charge <= rule.limit for rule in self.others
        )

    def lacking(self, charge: int, ahead: int = 0) -> list[tuple[Rule, int, int]]:
        """Return the rules under which *charge* does not fit now.

        With each: when it ends, and how many units must leave its span first. The units *ahead*,
        which earlier requests will charge, are added to *charge*.
        """
        charge = min(charge, self.most) + ahead
        found = []
        for end, rule in ends(self.rules()):
            over = rule.live + charge - rule.limit
            if over > 0 and rule.live:
                found.append((rule, end, min(rule.live, over)))
        return found

    def take(self, charge: int, now: int) -> Row:
        """Charge a row now, with at most a full window; the caller has checked that it fits."""
        charge = min(charge, self.most)
        expires = now + self.span
        number = self.next
        if self.head == number:
            self.head_us = expires
        self.tail_us = expires
        for rule in self.others:
            if rule.head == number:
                rule.head_us = now + rule.span
            rule.live += charge
        self.next = number + 1
        self.recent += OWN.pack(expires, charge)
        self.live += charge
        self.changed = True
        return number, expires, charge

    # -- the rows in the bucket's own record

    def own_rows(self, first: int, count: int) -> list[Row]:
        """Return at most *count* rows of the bucket's own record, from number *first* on."""
        first = max(first, self.spilled)
        rows = OWN.iter_unpack(self.recent[self._place(first) : self._place(first + count)])
        return [(number, expires, units) for number, (expires, units) in enumerate(rows, first)]

    def own_last(self) -> int | None:
        """Return when the newest of these rows that has units expires; None without any."""
        counting = [expires for expires, units in OWN.iter_unpack(self.recent) if units]
        return counting[-1] if counting else None

    def set_own(self, number: int, units: int) -> None:
        """Set the units of one of these rows."""
        before, after = self._place(number), self._place(number + 1)
        expires, _ = OWN.unpack(self.recent[before:after])
        self.recent = self.recent[:before] + OWN.pack(expires, units) + self.recent[after:]

    def _place(self, number: int) -> int:
        return (number - self.spilled) * OWN.size

    def spill(self) -> list[Row]:
        """Drop the expired ones of these rows; take the others to write out if there are enough."""
        if self.head > self.spilled:
            self.recent = self.recent[self._place(self.head) :]
            self.spilled = self.head
        if len(self.recent) < SPILL * OWN.size:
            return []
        rows = self.own_rows(self.spilled, self.next - self.spilled)
        self.spilled, self.recent = self.next, b""
        return rows

    def correct(self, number: int, units: int, to: int) -> None:
        """Count *to* units for row *number* instead of *units*."""
        self.live += to - units
        for rule in self.others:
            if number >= rule.head:
                rule.live += to - units
        self.changed = True

    def pause(self, until: int) -> None:
        """Grant nothing before *until*; a longer pause that is in force stays."""
        if until > self.paused_us:
            self.paused_us = until
            self.changed = True


def open_window(row: Sequence[Any]) -> Window:
    """Return the window of a stored bucket, from its first fifteen columns.

    >>> window = open_window((1, "rpm", 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, "", 1, b""))
    >>> window.add_rule(limit=5, span=1000, now=0), window.take(3, now=0), window.has_room(3)
    (0, (1, 1000, 3), False)
    """
    return Window(*row[:15])


def time_freed(rows: Iterable[Row], lacking: int) -> tuple[int | None, int]:
    """Tell when *lacking* units of *rows* have expired, and how many units are still lacking.

    >>> time_freed([(1, 100, 2), (2, 150, 2)], 3)
    (150, 0)
    >>> time_freed([(1, 100, 2)], 3)
    (None, 1)
    """
    for _, expires, units in rows:
        lacking -= units
        if lacking <= 0:
            return expires, 0
    return None, lacking
