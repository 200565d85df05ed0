"""Reading worker queues: counts, shares, and what one job waits for. Nothing is written."""

from __future__ import annotations

from typing import Any

import msgspec

from harn.errors import StorageCorrupt
from harn.storage.operations import Operation, ask, ask_ahead, ask_together
from harn.storage.queue.job_records import PRIORITIES, READY, STATES, function_needed
from harn.storage.queue.pauses import Pauses
from harn.storage.queue.read_queue import read_queue, read_with_outbox
from harn.storage.queue.share_tree import Node, lineage, read_node
from harn.storage.queue.share_turns import Share
from harn.storage.queue.time_histogram import AGE_BOUNDS, HANDLER_BOUNDS, read_times

COUNTED = 10_000
"""The most jobs counted ahead of another one; beyond it the count is "at least" this."""


class Histogram(msgspec.Struct, frozen=True):
    """Times by upper bound, in seconds: the count of each bound and beyond, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int]
    total_ms: int


class QueueCounts(msgspec.Struct, frozen=True):
    """The counts of a queue, and the state of its scheduler."""

    queue: str
    queue_id: int
    now: int
    ready: int
    scheduled: int
    in_flight: int
    acked: int
    purged: int
    dead: int
    cancelled: int
    responses: int
    oldest_at: int | None
    dimension: str
    cap: int
    policy: str | None
    other_policy: str | None
    policy_at: int
    round: int
    last_key: str
    promotions: int
    deferrals: int
    ages: Histogram
    """How long jobs had waited when they were claimed."""
    handled: Histogram
    """How long handlers worked."""
    expired: int
    """Attempts that ended because their claim expired."""
    retried: int
    """Dead jobs that were made ready again."""
    dropped_selected: int
    dropped_deferred: int
    is_due: bool
    has_waiting: bool
    """Whether jobs of committed transactions wait in the outbox; they are not counted."""
    pauses: Pauses
    charge: str
    """What a pick costs its key: `jobs`, one credit, or `cost`, what its job costs."""
    hierarchy: str
    """The separator of the names in a key that is a path; empty if keys are not paths."""


class ShareCounts(msgspec.Struct, frozen=True):
    """One key of a queue, with its counters."""

    key: str
    ready: int
    scheduled: int
    in_flight: int
    turn: int | None
    round: int
    credit: int
    refill: int
    oldest_at: int | None
    selected: int
    promoted: int
    deferred: int
    deferred_from: int
    parked: int


class JobView(msgspec.Struct, frozen=True):
    """A job's row, and the jobs ahead of it."""

    id: int
    key: str
    priority: int
    state: int
    enqueued_at: int
    wake_at: int | None
    attempts: int
    max_attempts: int
    epoch: int
    claim_id: str | None
    held: int
    consumer: str | None
    claimed_at: int | None
    settled_at: int | None
    tenant_id: str | None
    binding_key: str | None
    trigger_id: str | None
    history: str | None
    function: str | None
    share: Share | None
    ahead_in_key: tuple[int, ...]
    """Ready jobs of each priority, with the same key and an older id."""
    ahead_in_queue: tuple[int, ...]


def queue_names() -> Operation[list[str]]:
    """Return the names of all queues that do not belong to a pool, sorted.

    A queue may be named only in the outbox: a caller's own transaction put its first job there.
    """
    found: Any = yield ask_together([ask("worker_queue_names"), ask_ahead("queues_in_outbox")])
    rows, waiting = found
    return sorted({name for (name,) in (*rows, *(waiting or ()))})


def count_queue(queue: str) -> Operation[QueueCounts | None]:
    """Count a queue; None if nothing has ever entered it."""
    row, has_waiting = yield from read_with_outbox(queue)
    if row is None:
        return None
    [(ready, scheduled, in_flight, parked)] = yield ask("queue_totals", queue_id=row.queue_id)
    [oldest] = yield ask("oldest_waiting", queue_id=row.queue_id)
    return QueueCounts(
        queue=queue,
        queue_id=row.queue_id,
        now=row.now,
        ready=int(ready) + int(parked),
        scheduled=int(scheduled),
        in_flight=int(in_flight),
        acked=row.acked,
        purged=row.purged,
        dead=row.dead,
        cancelled=row.cancelled,
        responses=row.responses,
        oldest_at=min((at for at in oldest if at is not None), default=None),
        dimension=row.dimension,
        cap=row.cap,
        policy=row.policy,
        other_policy=row.other_policy,
        policy_at=row.policy_at,
        round=row.round,
        last_key=row.last_key,
        promotions=row.promotions,
        deferrals=row.deferrals,
        ages=_histogram(row.ages, AGE_BOUNDS),
        handled=_histogram(row.handled, HANDLER_BOUNDS),
        expired=row.expired,
        retried=row.retried,
        dropped_selected=row.dropped_selected,
        dropped_deferred=row.dropped_deferred,
        is_due=row.is_due,
        has_waiting=has_waiting,
        pauses=row.pauses,
        charge=row.charge,
        hierarchy=row.hierarchy,
    )


def _histogram(stored: str, bounds: tuple[float, ...]) -> Histogram:
    *counts, total_ms = read_times(stored, bounds)
    return Histogram(bounds, counts, total_ms)


def in_flight_by_lease(queue: str) -> Operation[dict[str, int]]:
    """Count the jobs of *queue* in flight, by the lease under which they were claimed."""
    row = yield from read_queue(queue)
    if row is None:
        return {}
    return dict((yield ask("in_flight_by_lease", queue_id=row.queue_id)))


def waiting_functions(queue: str, known: frozenset[str]) -> Operation[list[str]]:
    """Return the functions outside *known* (`function_need`) that a ready job of *queue* names."""
    row = yield from read_queue(queue)
    if row is None:
        return []
    needs = yield ask("triggers_seen", queue_id=row.queue_id)
    found = []
    for (need,) in needs:
        name = function_needed(need)
        if name is not None and need not in known:
            wanted = msgspec.json.encode([need]).decode()
            if (yield ask("open_job_of", queue_id=row.queue_id, triggers=wanted)):
                found.append(name)
    return found


def list_shares(queue_id: int, limit: int) -> Operation[list[ShareCounts]]:
    """Return a queue's shares, those with work first."""
    rows = yield ask("share_rows", queue_id=queue_id, limit=limit)
    return [ShareCounts(*row) for row in rows]


def list_nodes(queue_id: int, limit: int) -> Operation[list[Node]]:
    """Return the nodes and leaves of a queue's tree, by path."""
    rows = yield ask("node_rows", queue_id=queue_id, limit=limit)
    return [read_node(row) for row in rows]


def nodes_on_path(queue_id: int, key: str, separator: str) -> Operation[list[Node]]:
    """Return the nodes of the path *key* from the root on, and its leaf, if they are there."""
    keys = [each for each, _ in lineage(key, separator)]
    rows = yield ask("nodes_of", queue_id=queue_id, keys=msgspec.json.encode(keys).decode())
    found = {row[0]: read_node(row) for row in rows}
    return [found[each] for each in keys if each in found]


def keys_in_turn(queue_id: int, first: int, last: int | None, limit: int) -> Operation[list[Share]]:
    """Return shares that can be served from the round *first* to *last*, by turn and key.

    Without *last* every later round counts.
    """
    rows = yield ask("shares_ahead", queue_id=queue_id, turn=first, limit=limit)
    shares = [Share(*row) for row in rows]
    return [each for each in shares if last is None or (each.turn or first) <= last]


def look_at_job(queue_id: int, id: int) -> Operation[JobView | None]:
    """Return one job and its place in the queue, or None if there is no such job."""
    rows = yield ask("one_job", queue_id=queue_id, id=id)
    if not rows:
        return None
    row: tuple[Any, ...] = rows[0]
    key, _, state, *_ = row
    if state not in STATES:
        raise StorageCorrupt(f"job {id} has no state that can be read: {state!r}")
    share = yield ask("one_share", queue_id=queue_id, key=key)
    in_key = in_queue = [0] * len(PRIORITIES)
    if state == READY:
        in_key = yield from jobs_ahead(queue_id, key, id)
        in_queue = yield from jobs_ahead(queue_id, None, id)
    places = (tuple(in_key), tuple(in_queue))
    fields: list[Any] = [id, *row, Share(*share[0]) if share else None, *places]
    return JobView(*fields)


def jobs_ahead(queue_id: int, key: str | None, before: int) -> Operation[list[int]]:
    """Count the ready jobs of each priority before an id: of a key, or of the whole queue."""
    found = []
    for priority in range(len(PRIORITIES)):
        where = {"queue_id": queue_id, "priority": priority, "before": before, "limit": COUNTED}
        if key is None:
            [(ahead,)] = yield ask("queue_jobs_ahead", **where)
        else:
            [(ahead,)] = yield ask("jobs_ahead", key=key, **where)
        found.append(int(ahead))
    return found
