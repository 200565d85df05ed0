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

import struct
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
OWN = struct.Struct("<qq")
"""A row that a bucket holds itself: the instant it expires, its units."""


class Window:
    """One bucket at one instant; `open_window` makes it, `state` is what to store again."""

    __slots__ = (
        "changed",
        "head",
        "head_us",
        "id",
        "kept",
        "key",
        "limit",
        "live",
        "next",
        "others",
        "paused_us",
        "recent",
        "span",
        "spilled",
        "tail_us",
        "until",
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
        self.limit = limit
        self.span = span
        self.until = until
        """With *limit* and *span* the rule that was granted last; all three are 0 without any."""
        self.others = read_rules(limit, span, until, others)[:-1] if others else []
        """The other rules, the one granted last at the end."""
        self.spilled = spilled
        """The first row that the bucket holds itself."""
        self.recent = recent
        """The rows from *spilled* on, each as `OWN` packs it."""
        self.changed = False

    @property
    def state(self) -> tuple[Any, ...]:
        """What to store: the id, then every column but the key, in the constructor's order."""
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
            self.until,
            write_rules(self.others) if self.others else "",
            self.spilled,
            self.recent,
        )

    def is_settled(self, now: int) -> bool:
        """Tell whether nothing has run out since it was last looked at: the usual case."""
        latest = now + self.span
        return (
            now < self.until <= latest
            and self.tail_us <= latest
            and (self.head_us > now or self.head == self.next)
            and not self.others
            and self.paused_us <= now + LONGEST_PAUSE
        )

    def settle_in(self, now: int) -> int | None:
        """Drop the rules that have run out; the window in which none is in force is empty.

        Returns the instant that the rows must be cut back to, if there are later ones.
        """
        if self.paused_us > now + LONGEST_PAUSE:
            self.paused_us = now + LONGEST_PAUSE
            self.changed = True
        rules = [
            Rule(limit, span, min(until, now + span))
            for limit, span, until in (*self.others, (self.limit, self.span, self.until))
            if until > now
        ]
        self.limit, self.span, self.until = rules.pop() if rules else NO_RULE
        self.others = rules
        if not self.limit:
            self.clear()
            return None
        latest = now + max([self.span, *(rule.span for rule in rules)])
        if self.tail_us <= latest:
            return None
        self.tail_us = latest
        self.head_us = min(self.head_us, latest)
        self.recent = b"".join(
            [
                OWN.pack(min(expires, latest), units)
                for expires, units in OWN.iter_unpack(self.recent)
            ]
        )
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
            self.spilled, self.recent = self.next, b""

    def strictest(self, limit: int, span: int) -> tuple[int, int]:
        """Return the limit and the span that count for somebody who asks for these."""
        if 0 < self.limit < limit:
            limit = self.limit
        if self.span > span:
            span = self.span
        for granted, longest, _ in self.others:
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
        if self.limit != limit or self.span != span:
            self._set_last_rule(limit, span)
        self.until = now + span
        self.next = number + 1
        self.recent += OWN.pack(expires, charge)
        self.live += charge
        self.changed = True
        return number, expires, charge

    def _set_last_rule(self, limit: int, span: int) -> None:
        if self.limit:
            self.others.append(Rule(self.limit, self.span, self.until))
        self.others = [rule for rule in self.others if rule[:2] != (limit, span)]
        self.limit, self.span = limit, span

    def own_rows(self, first: int, count: int) -> list[Row]:
        """Return at most *count* rows that the bucket holds itself, from number *first* on."""
        first = max(first, self.spilled)
        rows = OWN.iter_unpack(self.recent[self._place(first) : self._place(first + count)])
        return [(number, expires, units) for number, (expires, units) in enumerate(rows, first)]

    def own_last(self) -> int | None:
        """Return when the newest of these expires that still counts for something."""
        counting = [expires for expires, units in OWN.iter_unpack(self.recent) if units]
        return counting[-1] if counting else None

    def set_own(self, number: int, units: int) -> None:
        """Set what one of these was charged."""
        before, after = self._place(number), self._place(number + 1)
        expires, _ = OWN.unpack(self.recent[before:after])
        self.recent = self.recent[:before] + OWN.pack(expires, units) + self.recent[after:]

    def _place(self, number: int) -> int:
        return (number - self.spilled) * OWN.size

    def spill(self) -> list[Row]:
        """Let go of what has expired; return the rows to write out, if there are enough."""
        if self.head > self.spilled:
            self.recent = self.recent[self._place(self.head) :]
            self.spilled = self.head
        if len(self.recent) < SPILL * OWN.size:
            return []
        rows = self.own_rows(self.spilled, self.next - self.spilled)
        self.spilled, self.recent = self.next, b""
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
        rules = (*self.others, Rule(self.limit, self.span, self.until))
        return min(
            (rule.until for rule in rules if 0 < rule.limit < limit or rule.span > span),
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
