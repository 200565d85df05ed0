"""Reading worker queues: counts, shares, and what one job waits for. Nothing is written."""

from __future__ import annotations

from typing import Any

import msgspec

from harn.errors import StorageCorrupt
from harn.storage.operations import Operation, ask, ask_ahead, ask_together
from harn.storage.queue.expire import settle_due
from harn.storage.queue.job_records import READY, STATES, function_needed
from harn.storage.queue.outbox import outbox_waits
from harn.storage.queue.pauses import Pauses, read_pauses
from harn.storage.queue.queue_row import open_queue
from harn.storage.queue.settle import NewId
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


def wake_queue(queue: str, new_id: NewId) -> Operation[bool]:
    """End expired claims and bury jobs that have no attempt left; tell if more is due."""
    state = yield from open_queue(queue)
    if state is None:
        return False
    yield from settle_due(state, new_id)
    return state.is_due


def count_queue(queue: str) -> Operation[QueueCounts | None]:
    """Count a queue; None if nothing has ever entered it."""
    found: Any = yield ask_together([ask("queue_row", queue=queue), outbox_waits(queue)])
    rows, waiting = found
    if not rows:
        return None
    (queue_id, now, dimension, cap, policy, round, last_key, _, alarm, ages, *more) = rows[0]
    deferrals, promotions, paused, handled, _, acked, purged, dead, responses, *more = more
    other, policy_at, selected, deferred, gone, expired, retried, charge, hierarchy = more
    [(ready, scheduled, in_flight, parked)] = yield ask("queue_totals", queue_id=queue_id)
    [oldest] = yield ask("oldest_ready", queue_id=queue_id)
    return QueueCounts(
        queue=queue,
        queue_id=queue_id,
        now=now,
        ready=int(ready) + int(parked),
        scheduled=int(scheduled),
        in_flight=int(in_flight),
        acked=acked,
        purged=purged,
        dead=dead,
        cancelled=gone,
        responses=responses,
        oldest_at=min((at for at in oldest if at is not None), default=None),
        dimension=dimension,
        cap=cap,
        policy=policy,
        other_policy=other,
        policy_at=policy_at,
        round=round,
        last_key=last_key,
        promotions=promotions,
        deferrals=deferrals,
        ages=_histogram(ages, AGE_BOUNDS),
        handled=_histogram(handled, HANDLER_BOUNDS),
        expired=expired,
        retried=retried,
        dropped_selected=selected,
        dropped_deferred=deferred,
        is_due=alarm is not None and alarm <= now,
        has_waiting=bool(waiting),
        pauses=read_pauses(paused),
        charge=charge,
        hierarchy=hierarchy,
    )


def _histogram(stored: str, bounds: tuple[float, ...]) -> Histogram:
    *counts, total_ms = read_times(stored, bounds)
    return Histogram(bounds, counts, total_ms)


def in_flight_by_lease(queue: str) -> Operation[dict[str, int]]:
    """Count the jobs of *queue* in flight, by the lease under which they were claimed."""
    rows = yield ask("queue_row", queue=queue)
    if not rows:
        return {}
    return dict((yield ask("in_flight_by_lease", queue_id=rows[0][0])))


def waiting_functions(queue: str, known: frozenset[str]) -> Operation[list[str]]:
    """Return the functions outside *known* (`function_need`) that a ready job of *queue* names."""
    rows = yield ask("queue_row", queue=queue)
    if not rows:
        return []
    queue_id = rows[0][0]
    needs = yield ask("foreign_triggers", queue_id=queue_id)
    found = []
    for (need,) in needs:
        name = function_needed(need)
        if name is not None and need not in known:
            wanted = msgspec.json.encode([need]).decode()
            if (yield ask("open_job_of", queue_id=queue_id, triggers=wanted)):
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
    share = yield ask("one_share", queue_id=queue_id, key=row[0])
    in_key, in_queue = [], []
    for priority in range(3):
        if row[2] != READY:
            in_key, in_queue = [0, 0, 0], [0, 0, 0]
            break
        where = {"queue_id": queue_id, "priority": priority, "limit": COUNTED}
        [(ahead,)] = yield ask("jobs_ahead", key=row[0], before=id, **where)
        [(before_us,)] = yield ask("queue_jobs_ahead", before=id, **where)
        in_key.append(ahead)
        in_queue.append(before_us)
    ahead = [tuple(in_key), tuple(in_queue)]
    fields: list[Any] = [id, *row, Share(*share[0]) if share else None, *ahead]
    view = JobView(*fields)
    if view.state not in STATES:
        raise StorageCorrupt(f"job {id} has no state that can be read: {view.state!r}")
    return view
