"""Removing settled jobs when their time is over; the queue keeps their totals.

The topic of the jobs is trimmed from its oldest record on, some at a time, up to the first job that
is not settled or whose time is not over; then the claims and responses that no job needs any more.
Each trim of the jobs leaves a record among the claims, `jobs_trimmed`, with the queue's totals: a
fold of the records that are left starts to count from these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from harn.storage.contract import Draft, Event
from harn.storage.log import append, oldest_kept, trim
from harn.storage.operations import Operation, Recipe, ask
from harn.storage.queue.gathered_records import queue_headers
from harn.storage.queue.job_records import DEAD, SETTLED_STATES
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.read_queue import read_queue
from harn.topics import queue_topics

T = TypeVar("T")

JOBS_AT_ONCE = 200
HISTORY_AT_ONCE = 1000
"""Jobs, and records of claims or responses, that one transaction removes at most."""
REWRITTEN_AT_ONCE = 100_000
"""The same, where removing anything rewrites the whole topic."""
LARGE = 10_000
"""Jobs of a topic above which an engine that rewrites it whole waits for a quarter to go."""
JUST_NOW_MS = 600_000
"""How long a settled job is kept although there are too many."""
TOTALS = ("acked", "purged", "dead", "cancelled", "responses", "expired", "retried", "promotions")


class Keeping(msgspec.Struct, frozen=True):
    """How long settled jobs are kept, in milliseconds; 0 is forever."""

    settled_ms: int
    dead_ms: int
    count: int | None = None
    """How many of them are kept at most. Those that were settled just now are kept in any case:
    a process that waits for one has to read how it ended."""
    dedupe_ms: int = 0
    """How long a dedupe key counts; its job stays as long."""

    @property
    def shortest(self) -> int:
        """The shorter of the two; 0 if everything is kept."""
        return min((each for each in (self.settled_ms, self.dead_ms) if each), default=0)

    @property
    def history_ms(self) -> int:
        """How long records of claims and responses are kept that no job needs."""
        return self.shortest if self.count is None else min(self.shortest, JUST_NOW_MS)

    def is_over(self, state: int, settled_at: int | None, now: int, surplus: bool) -> bool:
        """Tell whether the time of a job is over; with *surplus* there are too many."""
        if state not in SETTLED_STATES or settled_at is None:
            return False
        kept_ms = self.dead_ms if state == DEAD else self.settled_ms
        if surplus:
            kept_ms = min(kept_ms or JUST_NOW_MS, JUST_NOW_MS)
        return kept_ms > 0 and settled_at + kept_ms <= now


def settled_prefix(
    rows: Iterable[tuple[Any, ...]], now: int, keeping: Keeping, surplus: int = 0
) -> list[int]:
    """Return the oldest jobs whose time is over, up to the first that is needed.

    *rows* are (id, state, settled at), the oldest first. *surplus* says how many are too many.
    """
    found: list[int] = []
    for id, state, settled_at in rows:
        if not keeping.is_over(state, settled_at, now, len(found) < surplus):
            break
        found.append(id)
    return found


class TrimmedJobs(msgspec.Struct, frozen=True):
    """How many jobs were removed; a look that removes none is not committed."""

    count: int

    @property
    def changed_nothing(self) -> bool:
        """Whether there was nothing to remove."""
        return not self.count


def trim_settled(
    queue: str, keeping: Keeping, at_most: int, *, rewrites: bool = False
) -> Operation[TrimmedJobs]:
    """Remove the oldest jobs of *queue* whose time is over, *at_most* so many; return how many.

    With *rewrites* a large topic is left alone until a quarter of it can go: removing from it
    costs as much as writing what stays.
    """
    row = yield from read_queue(queue)
    if row is None:
        return TrimmedJobs(0)
    queue_id = row.queue_id
    oldest = yield ask("oldest_jobs", queue_id=queue_id, limit=at_most)
    surplus = 0
    if oldest and keeping.count is not None:
        surplus = (yield from _count_settled(queue_id, oldest[0][0])) - keeping.count
    over = settled_prefix(oldest, row.now, keeping, surplus)
    if not over:
        return TrimmedJobs(0)
    if rewrites:
        [(newest,)] = yield ask("newest_job", queue_id=queue_id)
        kept = newest - over[0] + 1
        if kept > LARGE and len(over) * 4 < kept:
            return TrimmedJobs(0)
    jobs, below = queue_topics(queue).jobs, over[-1] + 1
    gone = yield from trim(jobs, below=below, at_most=at_most, dedupe_ms=keeping.dedupe_ms)
    if not gone and (yield from oldest_kept(jobs)) >= below:  # a forced trim took their records
        yield from forget_jobs(queue, queue_id, below)
        gone = len(over)
    return TrimmedJobs(gone)


def _count_settled(queue_id: int, oldest: int) -> Operation[int]:
    """Count the settled jobs, the oldest of which is given; those withdrawn count, too."""
    [(newest,)] = yield ask("newest_job", queue_id=queue_id)
    [totals] = yield ask("pool_totals", queue_id=queue_id)
    return int(newest) - oldest + 1 - sum(map(int, totals))


class Trimmer(Protocol):
    """Carries the operations of a trim out."""

    @property
    def rewrites(self) -> bool:
        """Whether removing anything rewrites the whole topic."""

    @property
    def run(self) -> Callable[[Recipe[T]], Awaitable[T]]:
        """Carry an operation out."""


async def trim_queue(queue: str, keeping: Keeping, by: Trimmer, is_behind: bool) -> bool:
    """Remove jobs, and the records that only they needed; tell whether there may be more."""
    jobs, history = JOBS_AT_ONCE, HISTORY_AT_ONCE
    if by.rewrites:
        jobs = history = REWRITTEN_AT_ONCE
    settled = partial(trim_settled, queue, keeping, jobs, rewrites=by.rewrites)
    gone = (await by.run(settled)).count
    if not gone and not is_behind:
        return False
    has_more = gone > 0
    for topic in (queue_topics(queue).claims, queue_topics(queue).responses):
        removed = await by.run(partial(trim_history, topic, keeping, history))
        has_more = has_more or removed >= history
    return has_more


def trim_history(topic: str, keeping: Keeping, at_most: int) -> Operation[int]:
    """Remove old records of a queue's claims or responses that no job needs; return how many."""
    [(now,)] = yield ask("now")
    return (yield from trim(topic, before_ms=now - keeping.history_ms, at_most=at_most))


def forget_jobs(queue: str, queue_id: int, below: int) -> Operation[None]:
    """Remove the rows of settled jobs below an offset, and note the totals that they are in."""
    yield from _forget(queue_id, below)
    [row] = yield ask("queue_totals_kept", queue_id=queue_id)
    *totals, ages, handled, now = row
    record = {
        "below": below,
        "trimmed_at_ms": now,
        "totals": dict(zip(TOTALS, totals, strict=True)),
        "ages": ages,
        "handled": handled,
    }
    topic, headers = queue_topics(queue).claims, queue_headers(queue)
    [(at, _)] = yield from append(
        [Draft(topic, "jobs_trimmed", msgspec.json.encode(record), headers)]
    )
    yield ask("note_trimmed", queue_id=queue_id, trimmed=at)


def fold_trimmed(state: QueueState, event: Event) -> Operation[None]:
    """Forget the jobs that were trimmed, and count on from the totals that were noted."""
    record = event.payload
    yield from _forget(state.queue_id, int(record["below"]))
    totals = {name: int(record["totals"][name]) for name in TOTALS}
    yield ask("set_totals", queue_id=state.queue_id, trimmed=event.id, **totals)
    state.promotions = totals["promotions"]
    state.ages, state.handled = str(record["ages"]), str(record["handled"])
    state.is_changed = True


def _forget(queue_id: int, below: int) -> Operation[None]:
    yield ask("forget_dedupe", queue_id=queue_id, below=below)
    yield ask("forget_tickets", queue_id=queue_id, below=below)
    yield ask("forget_jobs", queue_id=queue_id, below=below)
    yield ask("forget_steps", queue_id=queue_id, below=below)
    yield ask("forget_cancels", queue_id=queue_id, below=below)
