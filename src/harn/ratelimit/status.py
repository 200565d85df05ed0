"""The rows of `harn ratelimit ls`: use, rules, waiting callers, and when units become free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harn.clock import iso
from harn.masking import mask
from harn.ratelimit.rules import Rule, ends, read_rules
from harn.records import Record, SparseRecord
from harn.storage import Operation, Store, limits

if TYPE_CHECKING:
    from harn.clock import Clock
    from harn.runtime import Runtime


@dataclass(frozen=True, slots=True)
class RuleStatus(Record):
    """One rule of a bucket: at most *limit* units in any *window_ms*."""

    limit: int
    window_ms: int


@dataclass(frozen=True, slots=True)
class BucketStatus(SparseRecord):
    """One bucket of one store; *frees_at* is when the oldest reservation stops counting.

    *rules* are all rules in force for its key, the longest window first. *limit* and *window_ms*
    are those of the longest window, and *used* is the sum of the units that count in it.
    """

    store: str
    key: str
    used: int
    limit: int | None
    window_ms: int | None
    rules: tuple[RuleStatus, ...]
    reservations: int
    waiting: int
    frees_at: str | None
    frees_in_ms: int | None
    paused_until: str | None

    @property
    def is_idle(self) -> bool:
        """Whether no units count, no caller waits and nothing is paused."""
        return not (self.reservations or self.waiting or self.paused_until)

    def as_dict(self) -> dict[str, Any]:
        """Return every field that has a value, JSON-ready."""
        # slots=True replaces the class by a second one, which a plain super() does not find.
        found = super(BucketStatus, self).as_dict()
        return {**found, "rules": [each.as_dict() for each in self.rules]}


async def list_status(runtime: Runtime, url: str) -> list[BucketStatus]:
    """List the buckets of the store at *url*, by key. Cancelling leaves nothing behind."""
    store = Store(runtime, url)
    try:
        postgres = store.place.engine == "postgresql"
        shown = mask(url) if postgres else str(store.place.path)
        now, found = await store.run(lambda: _look(postgres, runtime.clock), write=False)
        wall = runtime.clock.now_ms()
        return [_status(shown, each, now, wall) for each in found]
    finally:
        await store.aclose()


def _look(server_time: bool, clock: Clock) -> Operation[tuple[int, list[limits.ListedBucket]]]:
    if server_time:
        now = yield from limits.server_time()
    else:
        now = int(clock.monotonic() * 1e6)
    return now, (yield from limits.list_buckets(now))


def _status(shown: str, use: limits.ListedBucket, now: int, wall: int) -> BucketStatus:
    frees = None if use.frees_us is None else max(0, -(-(use.frees_us - now) // 1000))
    paused = use.paused_us - now
    rules = _rules(use, now)
    return BucketStatus(
        shown,
        use.key,
        use.used,
        rules[0].limit if rules else None,
        rules[0].window_ms if rules else None,
        rules,
        use.rows,
        use.waiting,
        None if frees is None else iso(wall + frees),
        frees,
        iso(wall + paused // 1000) if paused > 0 else None,
    )


def _rules(use: limits.ListedBucket, now: int) -> tuple[RuleStatus, ...]:
    """Return the rules in force, the longest window first; if none is, those that were last."""
    if not use.limit:
        return ()
    longest = Rule(use.limit, use.span_us, use.until_us - use.span_us)
    rules = read_rules(use.other_rules, longest) if use.other_rules else [longest]
    rules = [rule for end, rule in ends(rules) if end > now] or rules
    rules.sort(key=lambda rule: rule.span, reverse=True)
    return tuple(RuleStatus(rule.limit, rule.span // 1000) for rule in rules)
