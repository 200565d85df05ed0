"""The arithmetic of a sliding window: what is used, what still fits, and when more will.

A bucket is a queue of charged rows, numbered without gaps, each with the instant at which it stops
counting. A row that is charged later never expires earlier, so only the head of the queue can
expire, and the sum of what counts is kept instead of recomputed: charging, expiring and refusing
cost the same with ten rows in the window as with a hundred thousand.

Who asks for the same key with another limit or window follows the stricter rule. Every bucket
therefore remembers its *rules*: each pair of limit and span that was granted lately, and until
when. A rule is in force for one span after its last grant. The smallest limit and the longest
span in force count for everybody, so a row lives `max(span)` from its charge, and a request may
be charged while the sum stays within `min(limit)`.

The last few rows travel with the bucket itself and are written out, many at a time, when there are
enough of them: charging a bucket changes one record, not two.

A clock that was set back leaves rows that would expire too late. No row can have to live longer
than one span from now, so they are cut back to that: nothing is admitted too early, and nobody
waits longer than a window.

Nothing here awaits, reads a clock or knows a store. Times are whole microseconds.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LONGEST_PAUSE = 3_600_000_000
"""An hour: nobody is kept waiting longer by what a provider, or a poisoned store, says."""

SPILL = 32
"""Rows that a bucket holds itself."""

Row = tuple[int, int, int]
"""A charged row as it is stored: its number, the instant it expires, its units."""


class Rule(NamedTuple):
    """A limit that was granted lately: at most *limit* units in any *span*, until *until*."""

    limit: int
    span: int
    until: int


NO_RULE = Rule(0, 0, 0)
IS_LITTLE = sys.byteorder == "little"


class Window:
    """One bucket at one instant; `open_window` makes it, `state` is what to store again."""

    __slots__ = (
        "changed",
        "head",
        "head_us",
        "id",
        "kept",
        "key",
        "live",
        "next",
        "paused_us",
        "recent",
        "rules",
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
        self.id = id
        self.key = key
        self.live = live
        """Units charged and not expired."""
        self.kept = kept
        """The oldest row that the store still holds."""
        self.head = head
        """The oldest row that counts; *next* when none does."""
        self.next = next
        self.head_us = head_us
        """When the head expires."""
        self.tail_us = tail_us
        """When the newest row expires."""
        self.paused_us = paused_us
        """Nothing is admitted before this: somebody was told to come back later."""
        self.rules = read_rules(limit, span, until, others)
        self.spilled = spilled
        """The first row that the bucket holds itself."""
        self.recent = array("q", recent)
        """Expiry and units, in turn, of the rows from *spilled* on."""
        if not IS_LITTLE:
            self.recent.byteswap()
        self.changed = False

    @property
    def state(self) -> tuple[Any, ...]:
        """What to store: the id, then every column but the key, in the constructor's order."""
        rules = self.rules
        limit, span, until = rules[-1] if rules else NO_RULE
        return (
            self.id,
            self.live,
            self.kept,
            self.head,
            self.next,
            self.head_us,
            self.tail_us,
            self.paused_us,
            limit,
            span,
            until,
            write_rules(rules[:-1]) if len(rules) > 1 else "",
            self.spilled,
            self._packed(),
        )

    def _packed(self) -> bytes:
        if IS_LITTLE:
            return self.recent.tobytes()
        swapped = array("q", self.recent)
        swapped.byteswap()
        return swapped.tobytes()

    def settle_in(self, now: int) -> int | None:
        """Drop the rules that have run out; the window in which none is in force is empty.

        Returns the instant that the rows must be cut back to, if there are later ones.
        """
        if self.paused_us > now + LONGEST_PAUSE:
            self.paused_us = now + LONGEST_PAUSE
            self.changed = True
        rules = self.rules
        if len(rules) != 1 or not now < rules[0].until <= now + rules[0].span:
            self.rules = rules = [
                Rule(limit, span, min(until, now + span))
                for limit, span, until in rules
                if until > now
            ]
        if not rules:
            self.clear()
            return None
        latest = now + (rules[0].span if len(rules) == 1 else max(rule.span for rule in rules))
        if self.tail_us <= latest:
            return None
        self.tail_us = latest
        self.head_us = min(self.head_us, latest)
        for place in range(0, len(self.recent), 2):
            self.recent[place] = min(self.recent[place], latest)
        self.changed = True
        return latest

    def has_expired(self, now: int) -> bool:
        """Tell whether a row that is still counted has expired; if all have, stop counting."""
        if self.head == self.next or self.head_us > now:
            return False
        if self.tail_us <= now:
            self.clear()
            return False
        return True

    def drop_expired(self, rows: Iterable[Row], now: int) -> bool:
        """Stop counting those of *rows*, which begin at the head, that have expired.

        False when all of them had, so that the following ones must be looked at too.
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
        """Count nothing any more."""
        if self.head != self.next or self.live:
            self.head, self.live, self.changed = self.next, 0, True
            self.spilled, self.recent = self.next, array("q")

    def strictest(self, limit: int, span: int) -> tuple[int, int]:
        """Return the limit and the span that count for somebody who asks for these."""
        for granted, longest, _ in self.rules:
            if granted < limit:
                limit = granted
            if longest > span:
                span = longest
        return limit, span

    def lacking(self, charge: int, limit: int, span: int) -> int:
        """Return how many units must expire before *charge* fits; 0 means it fits now.

        A charge of the whole limit or more waits for an empty window.
        """
        over = self.live + charge - self.strictest(limit, span)[0]
        return min(self.live, over) if over > 0 else 0

    def take(self, charge: int, limit: int, span: int, now: int) -> Row:
        """Charge a row now, at most one full window; the caller has seen that it fits."""
        most, longest = self.strictest(limit, span)
        if charge > most:
            charge = most
        expires = now + longest
        number = self.next
        if self.head == number:
            self.head_us = expires
        self.tail_us = expires
        rules = self.rules
        last = rules[0] if len(rules) == 1 else NO_RULE
        if last.limit != limit or last.span != span:
            rules = [rule for rule in rules if rule[:2] != (limit, span)]
            rules.append(NO_RULE)
            self.rules = rules
        rules[-1] = Rule(limit, span, now + span)
        self.next = number + 1
        self.recent.extend((expires, charge))
        self.live += charge
        self.changed = True
        return number, expires, charge

    def own_rows(self, first: int, count: int) -> list[Row]:
        """Return at most *count* rows that the bucket holds itself, from number *first* on."""
        recent, spilled = self.recent, self.spilled
        return [
            (number, recent[2 * (number - spilled)], recent[2 * (number - spilled) + 1])
            for number in range(max(first, spilled), min(first + count, self.next))
        ]

    def own_last(self) -> int | None:
        """Return when the newest of these expires that still counts for something."""
        for place in range(len(self.recent) - 2, -1, -2):
            if self.recent[place + 1]:
                return self.recent[place]
        return None

    def set_own(self, number: int, units: int) -> None:
        """Set what one of these was charged."""
        self.recent[2 * (number - self.spilled) + 1] = units

    def spill(self) -> list[Row]:
        """Let go of what has expired; return the rows to write out, if there are enough."""
        if self.head > self.spilled:
            del self.recent[: 2 * (self.head - self.spilled)]
            self.spilled = self.head
        if len(self.recent) < 2 * SPILL:
            return []
        rows = self.own_rows(self.spilled, self.next - self.spilled)
        self.spilled, self.recent = self.next, array("q")
        return rows

    def correct(self, units: int, to: int) -> None:
        """Count *to* units for a row that was counted with *units*."""
        self.live += to - units
        self.changed = True

    def pause(self, until: int) -> None:
        """Admit nothing before *until*; an earlier and longer pause stays."""
        if until > self.paused_us:
            self.paused_us = until
            self.changed = True

    def eases_at(self, limit: int, span: int) -> int | None:
        """Return when the first rule runs out that is stricter than these, if there is one."""
        return min(
            (rule.until for rule in self.rules if rule.limit < limit or rule.span > span),
            default=None,
        )


def open_window(row: Sequence[Any]) -> Window:
    """Read a bucket as it was stored: its first fifteen columns.

    >>> window = open_window((1, "rpm", 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, "", 1, b""))
    >>> window.take(3, limit=5, span=1000, now=0), window.lacking(3, limit=5, span=1000)
    ((1, 1000, 3), 1)
    """
    return Window(*row[:15])


def read_rules(limit: int, span: int, until: int, others: str) -> list[Rule]:
    """Read the rules of a bucket: the last one granted from its columns, others from their text.

    >>> read_rules(5, 1000, 7000, "")
    [Rule(limit=5, span=1000, until=7000)]
    """
    if not others:
        return [Rule(limit, span, until)] if limit else []
    found = [Rule(*map(int, part.split(","))) for part in others.split(";")]
    found.append(Rule(limit, span, until))
    return found


def write_rules(rules: Iterable[Rule]) -> str:
    """Write rules as they are stored."""
    return ";".join([f"{limit},{span},{until}" for limit, span, until in rules])


def time_freed(rows: Iterable[Row], lacking: int) -> tuple[int | None, int]:
    """Walk *rows* until *lacking* units have expired: the instant, and what is still lacking.

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
