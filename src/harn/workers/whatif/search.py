"""Look for the smallest change of policy or consumers that reaches a goal.

Settings are tried first, because they cost nothing: the fair strategy, then the weight of the
goal's key (in a tree, also those of the branches above it) and a cap, each alone, then both
together. After them come more consumers, alone and with the best settings. Of each the values are
tried in large steps; between the last one that misses the goal and the first one that reaches it,
the smallest is found by halves. How many simulations are made depends on the number of jobs alone,
so the result is always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from harn.storage.queue import share_tree, shown_key
from harn.workers.scheduler_policy import SchedulerPolicy
from harn.workers.whatif.goal import Goal
from harn.workers.whatif.report import Side

FACTORS = (2, 8, 32)
MOST_TRIES = 40
FEWEST_TRIES = 12
MOST_PICKS = 3_000_000
"""Roughly the picks of all tries together: two minutes of work."""

Evaluate = Callable[[SchedulerPolicy, int | None], Side]
"""Simulates a policy with so many consumers; None for those of the log."""


class PolicyChange(msgspec.Struct, frozen=True):
    """What to change: fields of the policy by their names, and the number of consumers."""

    settings: dict[str, object] = {}
    consumers: int | None = None

    def policy(self, base: SchedulerPolicy) -> SchedulerPolicy:
        """Return *base* with the change."""
        return msgspec.structs.replace(base, **self.settings)

    def flags(self) -> str:
        """Write the change as options of `queue what-if`."""
        shown = []
        for name, value in self.settings.items():
            if isinstance(value, dict):
                value = ",".join(f"{key}:{weight}" for key, weight in value.items())
            shown.append(f"--{FLAGS[name]} {value}")
        if self.consumers is not None:
            shown.append(f"--consumers {self.consumers}")
        return " ".join(shown)


FLAGS = {"strategy": "strategy", "weights": "weights", "max_concurrent_per_key": "cap"}


class SearchResult(msgspec.Struct):
    """The end of a search: the change that was found, and what it gives."""

    change: PolicyChange
    side: Side
    is_reached: bool
    tried: int


def tries_for(jobs: int) -> int:
    """Return how many simulations a search may make on a log of so many jobs.

    >>> tries_for(1000), tries_for(100_000), tries_for(1_000_000)
    (40, 30, 12)
    """
    return max(FEWEST_TRIES, min(MOST_TRIES, MOST_PICKS // max(1, jobs)))


class _OutOfTries(Exception):
    """As many simulations were made as the search may make."""


class _Search:
    """One search: what was tried, and the nearest change so far."""

    def __init__(
        self,
        goal: Goal,
        base: SchedulerPolicy,
        evaluate: Evaluate,
        tries: int,
        progress: Callable[[int, str], None] | None,
    ) -> None:
        self.tried = 0
        self.nearest: SearchResult | None = None
        self._goal = goal
        self._base = base
        self._evaluate = evaluate
        self._tries = tries
        self._progress = progress

    def note(self, change: PolicyChange, side: Side) -> SearchResult:
        """Keep what *change* gives, if it comes nearer than the others."""
        found = SearchResult(change, side, self._goal.is_reached(side), self.tried)
        if self.nearest is None or self._goal.value(side) < self._goal.value(self.nearest.side):
            self.nearest = found
        return found

    def attempt(self, change: PolicyChange) -> SearchResult:
        """Simulate *change*."""
        if self.tried >= self._tries:
            raise _OutOfTries
        self.tried += 1
        if self._progress is not None:
            self._progress(self.tried, change.flags())
        return self.note(change, self._evaluate(change.policy(self._base), change.consumers))

    def smallest(
        self, now: int, values: Sequence[int], make: Callable[[int], PolicyChange]
    ) -> SearchResult | None:
        """Return the first of *values* that reaches the goal, or one nearer to *now* that does."""
        missed = now
        for value in values:
            found = self.attempt(make(value))
            if found.is_reached:
                return self._between(missed, value, found, make)
            missed = value
        return None

    def _between(
        self, missed: int, value: int, found: SearchResult, make: Callable[[int], PolicyChange]
    ) -> SearchResult:
        while abs(value - missed) > 1 and self.tried < self._tries:
            middle = (value + missed) // 2
            other = self.attempt(make(middle))
            if other.is_reached:
                value, found = middle, other
            else:
                missed = middle
        return found


def search(
    goal: Goal,
    base: SchedulerPolicy,
    start: Side,
    consumers: int | None,
    evaluate: Evaluate,
    tries: int = MOST_TRIES,
    progress: Callable[[int, str], None] | None = None,
) -> SearchResult:
    """Return the smallest change that reaches *goal*, or the one that comes nearest.

    *start* is what *base* with *consumers* gives.
    """
    looking = _Search(goal, base, evaluate, tries, progress)
    found: SearchResult | None = looking.note(PolicyChange(consumers=consumers), start)
    assert found is not None
    if not found.is_reached:
        try:
            found = _by_settings(looking, goal, base, start, consumers)
            found = found or _by_consumers(looking, start)
        except _OutOfTries:
            found = None
    found = found or looking.nearest
    assert found is not None
    found.tried = looking.tried
    return found


def _by_settings(
    looking: _Search, goal: Goal, base: SchedulerPolicy, start: Side, consumers: int | None
) -> SearchResult | None:
    """Return the smaller of the changes of one setting that reach the goal; else of two."""
    fair: dict[str, object] = {} if base.strategy == "drr" else {"strategy": "drr"}
    if fair and (found := looking.attempt(PolicyChange(fair, consumers))).is_reached:
        return found
    slots = base.max_concurrent_per_key or start.slots
    caps = sorted({each for each in (slots // 2, slots // 4) if each}, reverse=True)

    def capped(value: int) -> dict[str, object]:
        return {"max_concurrent_per_key": value}

    by_weight: SearchResult | None = None
    for path in _paths(goal.key, base):
        weight = base.weight(path)
        make = partial(_weighted, base, fair, path, consumers)
        by_weight = looking.smallest(weight, [weight * each for each in FACTORS], make)
        if by_weight is not None:
            break
    by_cap = looking.smallest(
        slots, caps, lambda value: PolicyChange({**fair, **capped(value)}, consumers)
    )
    if by_weight is not None and by_cap is not None:
        factor = by_weight.change.policy(base).weight(path) / weight
        cap = by_cap.change.policy(base).max_concurrent_per_key
        return by_weight if factor <= slots / cap else by_cap
    if by_weight is not None or by_cap is not None:
        return by_weight or by_cap
    for path in _paths(goal.key, base):
        heaviest = _weighted(base, fair, path, consumers, base.weight(path) * FACTORS[-1])
        for value in caps:
            change = PolicyChange({**heaviest.settings, **capped(value)}, consumers)
            if (found := looking.attempt(change)).is_reached:
                return found
    return None


def _paths(key: str | None, base: SchedulerPolicy) -> list[str]:
    """Return the keys whose weight matters to *key*: in a tree, those of the branches it is in."""
    if key is None:
        return []
    if base.hierarchy is None:
        return [key]
    nodes = share_tree.lineage(key, base.hierarchy)[:-1]
    return [shown_key(node) for node, _ in reversed(nodes)]


def _weighted(
    base: SchedulerPolicy, fair: dict[str, object], path: str, consumers: int | None, weight: int
) -> PolicyChange:
    return PolicyChange({**fair, "weights": {**base.weights, path: weight}}, consumers)


def _by_consumers(looking: _Search, start: Side) -> SearchResult | None:
    """Return the fewest more consumers that reach the goal, alone or with the best settings."""
    more = [start.consumers * factor for factor in (2, 4, 8)]
    assert looking.nearest is not None
    settings = looking.nearest.change.settings
    alone = looking.smallest(start.consumers, more, lambda number: PolicyChange({}, number))
    if not settings:
        return alone
    limit = alone.change.consumers if alone is not None else None
    fewer = [number for number in more if limit is None or number <= limit]
    together = looking.smallest(
        start.consumers, fewer, lambda number: PolicyChange(settings, number)
    )
    return together or alone
