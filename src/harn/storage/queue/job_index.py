"""The queue index: how each record of a queue's topics changes the tables beside the log.

Live operations (`claim.py`) decide, append the records, and apply these changes in the same
transaction, many at a time. `job_fold.py` applies the same changes to records read back from the
log, so a rebuilt index equals the live one. Changes that only time brings (a claim expires, a
scheduled job comes due) have a record too, written by the process that notices them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from harn.storage.contract import APPEND, Draft
from harn.storage.operations import Ask, Operation, Row, ask, ask_ahead, ask_many, ask_together
from harn.storage.queue.attempt_history import EXPIRED, add_history
from harn.storage.queue.job_records import (
    CLAIMED,
    FAILED,
    PARKED,
    READY,
    SCHEDULED,
    JobDraft,
    Share,
    share_key,
)
from harn.storage.queue.pauses import Pauses, read_pauses, written
from harn.storage.queue.pool_records import ROTATION, read_pool
from harn.storage.queue.share_tree import shift_tree
from harn.topics import queue_topics

BATCH = 500
ACK_HELD = "ack_held"
IDLE_SHARES = 256
"""Idle keys whose counters are still shown one by one."""
AGE_BOUNDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
"""Upper bounds, in seconds, of the histogram of how long jobs waited for their claim."""
HANDLER_BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Upper bounds, in seconds, of the histogram of how long handlers worked."""

JOB_COLUMNS = (
    *("queue_id", "id", "key", "priority", "state", "enqueued_at", "wake_at"),
    *("max_attempts", "tenant_id", "binding_key", "trigger_id", "function", "cost"),
)
GROW_COLUMNS = (
    *("queue_id", "key", "ready", "scheduled", "round", "at", "cap", "deferrals", "parked"),
)
CLAIM_COLUMNS = (
    *("queue_id", "id", "claim_id", "consumer", "wake_at", "claimed_at", "claim_round", "lease"),
    "charged",
)
SERVE_COLUMNS = (
    *("queue_id", "key", "served", "promoted", "turn", "round", "credit", "deferrals"),
    *("oldest_at", "known", "refill"),
)
SHIFT_COLUMNS = (
    *("queue_id", "key", "ready", "scheduled", "in_flight", "selected"),
    *("round", "cap", "at", "deferrals", "parked"),
)
FREE_COLUMNS = ("queue_id", "key", "in_flight", "round", "cap", "at", "deferrals")
SETTLE_COLUMNS = (
    *("queue_id", "id", "state", "wake_at", "held", "attempts", "settled_at", "history"),
    "response",
)


class Tally(msgspec.Struct):
    """What an operation has settled."""

    acked: int = 0
    purged: int = 0
    dead: int = 0
    responses: int = 0
    cancelled: int = 0
    expired: int = 0
    retried: int = 0
    handler_ms: list[int] = []
    """How long the handlers of its responses worked."""


class Holding(msgspec.Struct, frozen=True):
    """Claims to be written: rows of `CLAIM_COLUMNS`, and of `SERVE_COLUMNS` for their shares."""

    claims: Sequence[Row]
    shares: Sequence[Row]


class QueueState(msgspec.Struct):
    """A queue's row, as an operation holds it; `save_queue` writes it back."""

    name: str
    queue_id: int
    now: int
    dimension: str
    cap: int
    policy: str | None
    round: int
    last_key: str
    promoted: int
    alarm: int | None
    ages: str
    deferrals: int
    promotions: int
    paused: str | None = None
    """What is paused, as it is stored; `pauses` reads it."""
    handled: str = ""
    """The histogram of how long handlers worked, as it is stored."""
    trimmed: int = 0
    """The offset of the newest `jobs_trimmed` record, which has the totals of trimmed jobs."""
    pool: str | None = None
    """The settings of the pool that the queue belongs to, as they are stored."""
    charge: str = "jobs"
    """What a pick costs its key: `jobs`, one credit, or `cost`, what its job costs."""
    hierarchy: str = ""
    """What separates the names in a key that is a path; empty if keys are no paths."""
    outbox: bool | None = None
    """Whether jobs wait in the outbox; None where the engine has none."""
    is_new: bool = False
    is_changed: bool = False
    is_touched: bool = False
    """Whether anything else was written for the queue."""
    tally: Tally = msgspec.field(default_factory=Tally)
    drafts: list[Draft] = []
    """Records to append at the end of the operation."""
    responded: int = 0
    """The newest offset of the responses before this operation, where it was asked for."""
    claimed: int | None = None
    """The newest offset of the claims before this operation, where the engine told it."""
    holding: Holding | None = None
    """Claims that are decided and not written yet."""
    ahead: dict[str, Any] = {}
    """Answers to the questions asked together with the row, by the statement's name."""

    @property
    def pauses(self) -> Pauses:
        """What of the queue is paused."""
        return read_pauses(self.paused)

    def ready_for(self, tenant_id: str | None) -> int:
        """Return the state of a ready job of *tenant_id*: parked if the tenant is paused."""
        return READY if self.paused is None else self.pauses.state_of_ready(tenant_id)

    @property
    def rotates(self) -> bool:
        """Whether keys take turns in the order of their arrival, as those of a fair pool do."""
        return self.pool is not None and read_pool(self.pool).order == ROTATION

    def next_turn(self) -> int:
        """Return a round whose next one is behind every turn that was given so far."""
        self.round += 1
        self.is_changed = True
        return self.round - 1

    @property
    def is_due(self) -> bool:
        """Whether a claim may have expired or a job come due."""
        return self.alarm is not None and self.alarm <= self.now


class JobRow(msgspec.Struct):
    """A job's row, as far as settling it needs it."""

    id: int
    key: str
    state: int
    wake_at: int | None
    attempts: int
    max_attempts: int
    claim_id: str | None
    held: int
    history: str | None
    claim_round: int | None = None
    """The scheduler's round in which it was claimed last."""
    tenant_id: str | None = None
    consumer: str | None = None
    charged: int | None = None
    """What its last claim was charged, in millionths; None if that was one credit."""


def open_queue(
    queue: str, *, create: bool = False, ahead: Sequence[Ask] = ()
) -> Operation[QueueState | None]:
    """Read and, where the engine has row locks, lock the row of *queue*.

    The questions *ahead* are asked in the same round trip, after the row is locked.
    """
    found: Any = yield ask_together([ask("open_queue", queue=queue), *ahead])
    rows, *answers = found
    is_new = not rows
    while not rows:
        if not create:
            return None
        yield ask("add_queue", queue=queue)
        rows = yield ask("open_queue", queue=queue)
    state = QueueState(queue, *rows[0])
    state.is_new = is_new
    for asked, answer in zip(ahead, answers, strict=True):
        # Without its row nothing was seen of a queue, which another process may have made since.
        if answer is not None and (not is_new or asked.name == APPEND):
            state.ahead[asked.name] = answer
    return state


def save_queue(state: QueueState) -> Operation[None]:
    """Write back what an operation has changed of the queue's row."""
    if state.is_changed:
        yield ask("save_queue", **saved_row(state))


def saved_row(state: QueueState) -> dict[str, Any]:
    """Return the changed columns of the queue's row; they count as saved."""
    tally, state.tally = state.tally, Tally()
    if tally.handler_ms:
        state.handled = add_times(state.handled, tally.handler_ms, HANDLER_BOUNDS)
    state.is_changed = False
    return {
        "queue_id": state.queue_id,
        "round": state.round,
        "last_key": state.last_key,
        "promoted": int(state.promoted),
        "promotions": state.promotions,
        "alarm": state.alarm,
        "ages": state.ages,
        "acked": tally.acked,
        "purged": tally.purged,
        "dead": tally.dead,
        "responses": tally.responses,
        "cancelled": tally.cancelled,
        "expired": tally.expired,
        "retried": tally.retried,
        "handled": state.handled,
    }


def save_pauses(state: QueueState, pauses: Pauses) -> Operation[None]:
    """Write what of the queue is paused."""
    state.paused = written(pauses)
    state.is_touched = True
    yield ask("set_paused", queue_id=state.queue_id, paused=state.paused)


def look_by(state: QueueState, at: int) -> None:
    """Set the queue's alarm to *at*, unless it is set to an earlier time."""
    if state.alarm is None or at < state.alarm:
        state.alarm = at
        state.is_changed = True


# -- changes, many at a time ---------------------------------------------------------------------


def add_jobs(state: QueueState, jobs: Sequence[tuple[int, int, JobDraft]]) -> Operation[None]:
    """Enter new jobs, given as (id, time of enqueueing, draft)."""
    rows: list[Row] = []
    ready: Counter[str] = Counter()
    scheduled: Counter[str] = Counter()
    parked: Counter[str] = Counter()
    first_at: dict[str, int] = {}
    soonest: int | None = None
    queue_id, dimension = state.queue_id, state.dimension
    is_paused = state.paused is not None
    rotates, rounds = state.rotates, dict[str, int]()
    for id, at, job in jobs:
        key = share_key(dimension, job.tenant_id, job.binding_key, job.trigger_id)
        wakes = job.wakes_at(at)
        if wakes is not None and wakes <= at:
            wakes = None
        state_now = READY if wakes is None else SCHEDULED
        if is_paused and wakes is None:
            state_now = state.ready_for(job.tenant_id)
        if wakes is not None:
            scheduled[key] += 1
            soonest = wakes if soonest is None else min(soonest, wakes)
        elif state_now == PARKED:
            parked[key] += 1
        else:
            ready[key] += 1
            first_at.setdefault(key, at)
            if rotates:  # one turn for each job, as in the fold, which sees one job at a time
                rounds.setdefault(key, state.next_turn())
        origin = (job.tenant_id, job.binding_key, job.trigger_id, job.function)
        rows.append(
            (
                *(queue_id, id, key, job.priority, state_now, at, wakes, job.max_attempts),
                *(*origin, job.cost),
            )
        )
    yield ask_many("insert_jobs", JOB_COLUMNS, rows)
    shares: list[Row] = [
        (
            *(queue_id, key, ready[key], scheduled[key], rounds.get(key, state.round)),
            *(first_at.get(key, at), state.cap, state.deferrals, parked[key]),
        )
        for key in sorted({*ready, *scheduled, *parked})
    ]
    yield ask_many("grow_shares", GROW_COLUMNS, shares)
    if state.hierarchy:
        yield from shift_tree(state, [(key, count, 0) for key, count in ready.items()])
    needs = sorted({job.need for _, _, job in jobs})
    yield ask_many(
        "note_triggers", ("queue_id", "trigger_id"), [(queue_id, each) for each in needs]
    )
    if soonest is not None:
        look_by(state, soonest)


def hold_jobs(
    state: QueueState,
    claims: Sequence[tuple[int, str, str, int, int, int | None, str | None, int | None, int]],
) -> Operation[None]:
    """Enter claims: (job id, claim id, consumer, expiry, time, round, lease, charge, enqueued)."""
    yield ask_many("claim_jobs", CLAIM_COLUMNS, claim_rows(state, claims))


def claim_rows(
    state: QueueState,
    claims: Sequence[tuple[int, str, str, int, int, int | None, str | None, int | None, int]],
) -> list[Row]:
    """Return the rows of claims, and count how long their jobs have waited."""
    waited = [claim[4] - claim[8] for claim in claims]
    state.ages = add_times(state.ages, waited, AGE_BOUNDS)
    return [(state.queue_id, *claim[:8]) for claim in claims]


def serve_shares(
    state: QueueState, served: Counter[str], promoted: Counter[str], shares: Iterable[Share]
) -> Operation[None]:
    """Write shares as a scheduler left them."""
    yield ask_many("serve_shares", SERVE_COLUMNS, share_rows(state, served, promoted, shares))


def write_holding(state: QueueState) -> Operation[None]:
    """Write the claims that are decided."""
    holding, state.holding = state.holding, None
    if holding is not None:
        yield ask_many("claim_jobs", CLAIM_COLUMNS, holding.claims)
        if holding.shares:
            yield ask_many("serve_shares", SERVE_COLUMNS, holding.shares)


def share_rows(
    state: QueueState, served: Counter[str], promoted: Counter[str], shares: Iterable[Share]
) -> list[Row]:
    """Return the rows of shares as a scheduler left them."""
    rows: list[Row] = []
    for share in shares:
        key = share.key
        rows.append(
            (
                *(state.queue_id, key, served[key], promoted[key], share.turn, share.round),
                *(share.credit, state.deferrals, share.oldest_at, int(share.knows_oldest)),
                share.refill,
            )
        )
    return rows


_PLACES = {READY: 0, SCHEDULED: 1, CLAIMED: 2, FAILED: 2, PARKED: 4}
"""Which of a share's sums counts a job, by its state; settled jobs are not counted."""


class Shifts:
    """Work that moves between ready, scheduled, in flight and parked, summed up by key."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[int]] = {}
        self._gained: list[str] = []
        """The keys of jobs that became ready, in their order."""

    def add(
        self, key: str, *, ready: int = 0, scheduled: int = 0, in_flight: int = 0, selected: int = 0
    ) -> None:
        """Note that the share *key* gains so much of each."""
        sums = self._by_key.setdefault(key, [0, 0, 0, 0, 0])
        sums[0] += ready
        sums[1] += scheduled
        sums[2] += in_flight
        sums[3] += selected

    def move(self, key: str, was: int, to: int) -> None:
        """Note that a job of *key* goes from one state to another."""
        sums = self._by_key.setdefault(key, [0, 0, 0, 0, 0])
        before, after = _PLACES.get(was), _PLACES.get(to)
        if before is not None:
            sums[before] -= 1
        if after is not None:
            sums[after] += 1
        if to == READY and was != READY:
            self._gained.append(key)

    def apply(self, state: QueueState) -> Operation[None]:
        """Write the sums."""
        rounds: dict[str, int] = {}
        if self._gained and state.rotates:
            for key in self._gained:
                rounds.setdefault(key, state.next_turn())
        freed: list[Row] = []
        moved: list[Row] = []
        for key, sums in sorted(self._by_key.items()):
            now = (rounds.get(key, state.round), state.cap, state.now, state.deferrals)
            if any((sums[0], sums[1], sums[3], sums[4])):
                moved.append((state.queue_id, key, *sums[:4], *now, sums[4]))
            elif sums[2]:
                freed.append((state.queue_id, key, sums[2], *now))
        if freed:
            yield ask_many("free_shares", FREE_COLUMNS, freed)
        if moved:
            yield ask_many("shift_shares", SHIFT_COLUMNS, moved)
        if state.hierarchy:
            work = sorted(self._by_key.items())
            yield from shift_tree(state, [(key, sums[0], sums[2]) for key, sums in work])


def ack_held(queue: str, claims: Mapping[int, str]) -> Ask:
    """Return the question, asked ahead, that acks the jobs whose *claims* (by job id) still hold.

    Its answer is the id and the key of each acked job, in the order of their responses, and the
    time. The shares of these jobs are already changed.
    """
    responses = queue_topics(queue).responses
    return ask_ahead(
        ACK_HELD, queue=queue, responses=responses, ids=[*claims], claim_ids=[*claims.values()]
    )


def settle_jobs(state: QueueState, rows: Sequence[Row]) -> Operation[None]:
    """Write jobs' new rows: id, state, wakes at, held, attempts, settled at, history, response."""
    if rows:
        yield ask_many("settle_jobs", SETTLE_COLUMNS, [(state.queue_id, *row) for row in rows])


def drop_idle(state: QueueState) -> Operation[None]:
    """Remove the keys idle longest, when there are many; the queue keeps their counters."""
    if state.hierarchy:
        yield ask("drop_idle_nodes", queue_id=state.queue_id)
    gone = yield ask("drop_idle_shares", queue_id=state.queue_id, keep=IDLE_SHARES)
    if gone:
        yield ask(
            "keep_dropped",
            queue_id=state.queue_id,
            selected=sum(row[0] for row in gone),
            deferred=sum(row[1] for row in gone),
        )


def wake_jobs(state: QueueState, rows: Sequence[Row]) -> Operation[None]:
    """Make jobs ready whose claim has expired or whose time has come: *rows* of `due_jobs`."""
    shifts = Shifts()
    settled: list[Row] = []
    for id, key, was, attempts, _, held, _, _, wake_at, history, tenant_id in rows:
        if was == CLAIMED:  # a dead consumer's claims end before their time
            at = min(wake_at, state.now)
            history = add_history(history, attempts, at, "expired", EXPIRED)
            state.tally.expired += 1
            state.is_changed = True
        to = state.ready_for(tenant_id)
        settled.append((id, to, None, held, attempts, None, history, None))
        shifts.move(key, was, to)
    yield from settle_jobs(state, settled)
    yield from shifts.apply(state)


def add_times(stored: str, times_ms: Iterable[int], bounds: Sequence[float]) -> str:
    """Count times in a histogram: a number for each bound and beyond, then the sum."""
    counts = read_times(stored, bounds)
    for ms, count in Counter(times_ms).items():  # of one batch, many are equal
        counts[bisect_left(bounds, ms / 1000)] += count
        counts[-1] += ms * count
    return ",".join(map(str, counts))


def read_times(stored: str, bounds: Sequence[float]) -> list[int]:
    """Return the counts by bound, the count beyond, and the sum in milliseconds."""
    return [int(each) for each in stored.split(",")] if stored else [0] * (len(bounds) + 2)


def bind_tickets(state: QueueState, tickets: Iterable[tuple[str | None, int]]) -> Operation[None]:
    """Store tickets, given as (ticket, job's id); a job without a ticket is skipped."""
    rows: list[Row] = [(state.queue_id, each, id) for each, id in tickets if each is not None]
    if rows:
        yield ask_many("bind_tickets", ("queue_id", "ticket", "job_id"), rows)


def dedupe_tenant(tenant_id: str | None) -> str:
    """Return the tenant part of a dedupe key; without a tenant, a name that no tenant can have."""
    return share_key("tenant", tenant_id, None, None)
