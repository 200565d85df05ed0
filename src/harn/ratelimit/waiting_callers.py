"""The callers of this process that wait for units, in the order of each bucket's line.

Each of them has a ticket in the lines that the store keeps. The queues here repeat the part of
those lines that belongs to this process, so that only the first callers of a line are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice

from harn.ratelimit.records import Granted, NoRoom, Ticket, Want
from harn.sync import WAITING, Waiter, WaitQueue

TOGETHER = 64
"""Callers of one line that are asked for in one operation."""


class Caller(Waiter):
    """One acquire under way: what it wants until *deadline*, and its ticket once it has one.

    Its state is WAITING until it has a *verdict* (GRANTED or TIMED_OUT), has failed (CLOSED), or
    was cancelled (GONE). If units are granted to a cancelled caller, they are released.
    """

    ticket: int | None = None
    verdict: Granted | NoRoom | None = None
    is_asked = False
    """Whether the operation under way asks for it."""
    ask_at: float | None = None
    """When it is asked for again; None while an earlier caller of this process is served first."""
    backoff: float = 0.0

    def __init__(self, wants: tuple[Want, ...], deadline: float | None, stays: bool) -> None:
        self.wants = wants
        self.deadline = deadline
        self.stays = stays
        """Whether it waits if there is no room; otherwise it is asked for once."""


class WaitingCallers:
    """Callers with a ticket, in one queue for each bucket that they want to charge."""

    def __init__(self) -> None:
        self.due: dict[Caller, None] = {}
        """Callers that the next operation asks for, as an ordered set."""
        self._all: dict[Caller, None] = {}
        self._queues: dict[str, WaitQueue[Caller]] = {}
        self._rules: dict[str, Counter[Want]] = {}
        """By key, the rules that they name, each written as the `Want` of one unit."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Caller]:
        return iter(self._all)

    @property
    def lines(self) -> int:
        """The number of lines in which they wait."""
        return len(self._queues)

    @property
    def tickets(self) -> list[Ticket]:
        """Every ticket, with what it is for."""
        return [Ticket(each.ticket, each.wants) for each in self._all if each.ticket is not None]

    def rules_of(self, keys: Iterable[str]) -> list[Want]:
        """Return the rules that the callers in the lines of *keys* name."""
        if not self._rules:
            return []
        return [rule for key in keys if key in self._rules for rule in self._rules[key]]

    def add(self, caller: Caller) -> None:
        """Put *caller*, which has just got its ticket, at the end of its lines."""
        self._all[caller] = None
        for want in caller.wants:
            if want.charge:
                self._queues.setdefault(want.key, WaitQueue()).append(caller)
                self._rules.setdefault(want.key, Counter())[_rule(want)] += 1

    def remove(self, caller: Caller) -> None:
        """Take *caller*, which no longer waits, out of its lines; the next in each becomes due."""
        self.due.pop(caller, None)
        if self._all.pop(caller, False) is False:
            return
        caller.ask_at = None
        for want in caller.wants:
            if not want.charge:
                continue
            self._forget_rule(want)
            queue = self._queues[want.key]
            queue.note_left()
            if queue.first() is None:
                del self._queues[want.key]
        self.wake_first(want.key for want in caller.wants)

    def _forget_rule(self, want: Want) -> None:
        named, rule = self._rules[want.key], _rule(want)
        named[rule] -= 1
        if not named[rule]:
            del named[rule]
        if not named:
            del self._rules[want.key]

    def wake_first(self, keys: Iterable[str]) -> None:
        """Make the first caller in the line of each of *keys* due."""
        for key in keys:
            if (queue := self._queues.get(key)) is None:
                continue
            first = queue.first()
            if first is not None and not first.is_asked and self.is_first(first):
                self.due[first] = None

    def is_first(self, caller: Caller) -> bool:
        """Tell whether *caller* is the first of this process in all its lines."""
        return all(self._queues[want.key].first() is caller for want in caller.wants if want.charge)

    def take_due(self) -> list[Caller]:
        """Take the callers that are due, and some that wait behind them, in order of ticket."""
        if not self.due:
            return []
        found = self.due
        self.due = {}
        for caller in list(found):
            for want in caller.wants:
                if (queue := self._queues.get(want.key)) is not None:
                    waiting = (each for each in queue if each.state == WAITING)
                    found.update(dict.fromkeys(islice(waiting, TOGETHER)))
        return sorted(found, key=lambda each: each.ticket or 0)


def _rule(want: Want) -> Want:
    return Want(want.key, want.limit, want.span, 1, want.replaces)
