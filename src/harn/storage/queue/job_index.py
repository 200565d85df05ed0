"""The queue index: how each record of a queue's topics changes the tables beside the log.

Live operations (`claim.py`) decide, append the records, and apply these changes in the same
transaction, many at a time. `job_fold.py` applies the same changes to records read back from the
log, so that a rebuilt index is the index. Changes that only time brings (a claim lapses, a
scheduled job comes due) have a record too, written by whoever noticed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from harn.storage.codec import decode
from harn.storage.contract import Draft
from harn.storage.operations import Ask, Operation, Row, ask, ask_ahead, ask_many, ask_together
from harn.storage.queue.job_records import (
    ACKED,
    CANCELLED,
    CLAIMED,
    DEAD,
    FAILED,
    PARKED,
    PURGED,
    READY,
    SCHEDULED,
    JobDraft,
    Share,
    share_key,
)
from harn.storage.queue.pauses import Pauses, read_pauses, written
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
    *("max_attempts", "tenant_id", "binding_key", "trigger_id", "function"),
)
GROW_COLUMNS = (
    *("queue_id", "key", "ready", "scheduled", "round", "at", "cap", "deferrals", "parked"),
)
CLAIM_COLUMNS = (
    *("queue_id", "id", "claim_id", "consumer", "wake_at", "claimed_at", "claim_round", "lease"),
)
REFUND_COLUMNS = ("queue_id", "key", "count", "round")
SERVE_COLUMNS = (
    *("queue_id", "key", "served", "promoted", "turn", "round", "credit", "deferrals"),
    *("oldest_at", "known"),
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
    """The newest record of the claims that tells the totals of jobs that were trimmed."""
    outbox: bool | None = None
    """Whether jobs wait in the outbox; None where the engine has none."""
    is_new: bool = False
    is_changed: bool = False
    is_touched: bool = False
    """Whether anything else was written for the queue."""
    tally: Tally = msgspec.field(default_factory=Tally)
    drafts: list[Draft] = []
    """Records to append when the operation is through."""
    responded: int = 0
    """The newest offset of the responses before this operation, where it was asked for."""
    ahead: dict[str, Any] = {}
    """What was asked along with the row and has been answered, by the statement's name."""

    @property
    def pauses(self) -> Pauses:
        """What of the queue is paused."""
        return read_pauses(self.paused)

    def ready_for(self, tenant_id: str | None) -> int:
        """Return the state of a ready job of *tenant_id*: parked if the tenant is paused."""
        return READY if self.paused is None else self.pauses.state_of_ready(tenant_id)

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


def open_queue(
    queue: str, *, create: bool = False, ahead: Sequence[Ask] = ()
) -> Operation[QueueState | None]:
    """Read and, where the engine has row locks, lock the row of *queue*.

    What is asked *ahead* is asked along with it, once it is locked.
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
        if answer is not None:
            state.ahead[asked.name] = answer
    return state


def save_queue(state: QueueState) -> Operation[None]:
    """Write back what an operation has changed of the queue's row."""
    if state.is_changed:
        if state.tally.handler_ms:
            state.handled = add_times(state.handled, state.tally.handler_ms, HANDLER_BOUNDS)
        yield ask(
            "save_queue",
            queue_id=state.queue_id,
            round=state.round,
            last_key=state.last_key,
            promoted=int(state.promoted),
            promotions=state.promotions,
            alarm=state.alarm,
            ages=state.ages,
            acked=state.tally.acked,
            purged=state.tally.purged,
            dead=state.tally.dead,
            responses=state.tally.responses,
            cancelled=state.tally.cancelled,
            expired=state.tally.expired,
            retried=state.tally.retried,
            handled=state.handled,
        )
        state.is_changed = False
        state.tally = Tally()


def save_pauses(state: QueueState, pauses: Pauses) -> Operation[None]:
    """Write what of the queue is paused."""
    state.paused = written(pauses)
    state.is_touched = True
    yield ask("set_paused", queue_id=state.queue_id, paused=state.paused)


def look_by(state: QueueState, at: int) -> None:
    """Have the queue looked at again at *at*, if not before."""
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
        origin = (job.tenant_id, job.binding_key, job.trigger_id, job.function)
        rows.append(
            (queue_id, id, key, job.priority, state_now, at, wakes, job.max_attempts, *origin)
        )
    yield ask_many("insert_jobs", JOB_COLUMNS, rows)
    shares: list[Row] = [
        (
            *(queue_id, key, ready[key], scheduled[key], state.round),
            *(first_at.get(key), state.cap, state.deferrals, parked[key]),
        )
        for key in sorted({*ready, *scheduled, *parked})
    ]
    yield ask_many("grow_shares", GROW_COLUMNS, shares)
    needs = sorted({job.need for _, _, job in jobs})
    yield ask_many(
        "note_triggers", ("queue_id", "trigger_id"), [(queue_id, each) for each in needs]
    )
    if soonest is not None:
        look_by(state, soonest)


def hold_jobs(
    state: QueueState, claims: Sequence[tuple[int, str, str, int, int, int | None, str | None, int]]
) -> Operation[None]:
    """Enter claims: (job id, claim id, consumer, expiry, time, round, lease, enqueued at)."""
    queue_id = state.queue_id
    yield ask_many("claim_jobs", CLAIM_COLUMNS, [(queue_id, *claim[:7]) for claim in claims])
    waited = [claim[4] - claim[7] for claim in claims]
    state.ages = add_times(state.ages, waited, AGE_BOUNDS)


def serve_shares(
    state: QueueState, served: Counter[str], promoted: Counter[str], shares: Iterable[Share]
) -> Operation[None]:
    """Write shares as a scheduler left them."""
    rows: list[Row] = []
    for share in shares:
        key = share.key
        rows.append(
            (
                *(state.queue_id, key, served[key], promoted[key], share.turn, share.round),
                *(share.credit, state.deferrals, share.oldest_at, int(share.knows_oldest)),
            )
        )
    yield ask_many("serve_shares", SERVE_COLUMNS, rows)


_PLACES = {READY: 0, SCHEDULED: 1, CLAIMED: 2, FAILED: 2, PARKED: 4}
"""Which of a share's sums counts a job, by its state; settled jobs are not counted."""


class Shifts:
    """Work that moves between ready, scheduled, in flight and parked, summed up by key."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[int]] = {}

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

    def apply(self, state: QueueState) -> Operation[None]:
        """Write the sums."""
        now = (state.round, state.cap, state.now, state.deferrals)
        freed: list[Row] = []
        moved: list[Row] = []
        for key, sums in sorted(self._by_key.items()):
            if any((sums[0], sums[1], sums[3], sums[4])):
                moved.append((state.queue_id, key, *sums[:4], *now, sums[4]))
            elif sums[2]:
                freed.append((state.queue_id, key, sums[2], *now))
        if freed:
            yield ask_many("free_shares", FREE_COLUMNS, freed)
        if moved:
            yield ask_many("shift_shares", SHIFT_COLUMNS, moved)


def ack_held(queue: str, claims: Mapping[int, str]) -> Ask:
    """Ask ahead for claimed jobs to be acked, if *claims* (by the jobs' ids) still hold.

    The id and the key of each that was come back, in the order of their responses, and the time;
    its share has been told.
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
    """Forget keys that have been idle longest, when there are many; their counters stay."""
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


EXPIRED = "the claim expired: its consumer died or stopped renewing"


def add_history(history: str | None, attempt: int, at: int, status: str, error: str | None) -> str:
    """Add one attempt to a job's history, kept as JSON."""
    entries = decode(history.encode()) if history else []
    entries.append({"attempt": attempt, "at_ms": at, "status": status, "error": error})
    return msgspec.json.encode(entries[-20:]).decode()


def add_times(stored: str, times_ms: Iterable[int], bounds: Sequence[float]) -> str:
    """Count times in a histogram: a number for each bound and beyond, then the sum."""
    counts = read_times(stored, bounds)
    for ms in times_ms:
        counts[bisect_left(bounds, ms / 1000)] += 1
        counts[-1] += ms
    return ",".join(map(str, counts))


def read_times(stored: str, bounds: Sequence[float]) -> list[int]:
    """Return the counts by bound, the count beyond, and the sum in milliseconds."""
    return [int(each) for each in stored.split(",")] if stored else [0] * (len(bounds) + 2)


def is_expiry(attempts: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the last of a dead job's *attempts* ended because its claim expired."""
    return bool(attempts) and attempts[-1].get("status") == "expired"


def bind_tickets(state: QueueState, tickets: Iterable[tuple[str | None, int]]) -> Operation[None]:
    """Let tickets stand for jobs, given as (ticket, job's id); a job without one is left out."""
    rows: list[Row] = [(state.queue_id, each, id) for each, id in tickets if each is not None]
    if rows:
        yield ask_many("bind_tickets", ("queue_id", "ticket", "job_id"), rows)


def dedupe_tenant(tenant_id: str | None) -> str:
    """Return the tenant part of a dedupe key; no tenant is one that no tenant can name."""
    return share_key("tenant", tenant_id, None, None)


def without_expiry(history: str | None) -> str | None:
    """Take back the note that a claim expired: it was renewed after all."""
    entries = decode(history.encode()) if history else []
    if entries and entries[-1]["status"] == "expired":
        entries.pop()
    return msgspec.json.encode(entries).decode() if entries else None


class Change(msgspec.Struct):
    """A job's row after it was settled, failed or released."""

    state: int
    wake_at: int | None
    held: int
    attempts: int
    settled_at: int | None
    history: str | None
    response: int | None = None
    """The offset of its response; None keeps the last one, 0 takes it away."""


class Changes:
    """Jobs that are settled, failed or released together, and what that does to their shares."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._rows: dict[int, Row] = {}
        self._acked: list[tuple[int, int | None]] = []
        self._ahead: list[int] = []
        self._shifts = Shifts()
        self._refunds: Counter[str] = Counter()

    def add(self, job: JobRow, to: Change) -> None:
        """Change *job*; a job may change more than once."""
        state = self._state.ready_for(job.tenant_id) if to.state == READY else to.state
        self._shifts.move(job.key, job.state, state)
        is_released = to.attempts < job.attempts and job.state != DEAD
        if is_released and job.claim_round == self._state.round:
            self._refunds[job.key] += 1  # its turn of this round does not count
        self._rows[job.id] = (
            *(job.id, state, to.wake_at, to.held, to.attempts, to.settled_at, to.history),
            to.response,
        )
        job.state, job.wake_at, job.held = state, to.wake_at, to.held
        job.attempts, job.history = to.attempts, to.history
        if to.wake_at is not None:
            look_by(self._state, to.wake_at)

    def ack(self, job: JobRow, response: int | None) -> None:
        """Settle *job* as done: what most jobs come to, and all of them alike."""
        self._shifts.move(job.key, job.state, ACKED)
        self._acked.append((job.id, response))
        job.state, job.wake_at, job.held = ACKED, None, 0

    def acked_ahead(self, rows: Iterable[Row]) -> Sequence[int]:
        """Note jobs that are written already, *rows* of `ack_held`; return their ids in order."""
        self._ahead = [row[0] for row in rows]
        return self._ahead

    @property
    def ids(self) -> list[int]:
        """The jobs that change."""
        return [*self._ahead, *(id for id, _ in self._acked), *self._rows]

    def apply(self) -> Operation[None]:
        """Write jobs' new rows and move their work between the counters of their shares."""
        state = self._state
        yield from settle_jobs(state, tuple(self._rows.values()))
        for first, ids in _runs(self._acked):
            yield ask(
                "ack_jobs",
                queue_id=state.queue_id,
                ids=msgspec.json.encode(ids).decode(),
                response=first,
                at=state.now,
            )
        yield from self._shifts.apply(state)
        if self._refunds:
            back: list[Row] = [
                (state.queue_id, key, count, state.round)
                for key, count in sorted(self._refunds.items())
            ]
            yield ask_many("refund_shares", REFUND_COLUMNS, back)


def _runs(
    acked: Sequence[tuple[int, int | None]],
) -> Iterator[tuple[int | None, list[int]]]:
    """Split acked jobs where their responses do not follow each other."""
    run: list[int] = []
    first: int | None = None
    for id, response in acked:
        if run and (response is None or first is None or response != first + len(run)):
            yield first, run
            run = []
        if not run:
            first = response
        run.append(id)
    if run:
        yield first, run


def failed(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Leave *job* to its claim's expiry, or to the backoff in *record*."""
    history = add_history(job.history, job.attempts, now, "failed", record.get("error"))
    until = record.get("not_before_ms")
    if until is not None:
        return Change(SCHEDULED, until, 0, job.attempts, None, history)
    if job.state in (READY, PARKED):  # the claim had expired already
        return Change(READY, None, 0, job.attempts, None, history)
    return Change(FAILED, job.wake_at, 0, job.attempts, None, history)


def buried(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Settle *job* as dead."""
    history = msgspec.json.encode(record["attempts"]).decode()
    return Change(DEAD, None, 0, job.attempts, now, history)


def released(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Give *job* back, and its attempt too."""
    until = record.get("not_before_ms")
    state = READY if until is None else SCHEDULED
    return Change(state, until, 0, max(0, job.attempts - 1), None, job.history)


def cancelled(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Settle *job* as cancelled; the reason stays in its history."""
    reason = record.get("reason")
    history = add_history(job.history, job.attempts, now, "cancelled", reason)
    return Change(CANCELLED, None, 0, job.attempts, now, history)


def retried(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Make a dead *job* ready again, its attempts counted from zero; its history stays."""
    return Change(READY, None, 0, 0, None, job.history, 0)


def purged(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Settle *job* as taken away."""
    return Change(PURGED, None, 0, job.attempts, now, job.history)


def change_keys(state: QueueState, dimension: str) -> Operation[None]:
    """Make a queue's keys of something else: every unsettled job changes its share."""
    if state.dimension == dimension:
        return
    state.dimension, state.last_key, state.promoted = dimension, "", 0
    yield ask("set_dimension", queue_id=state.queue_id, dimension=dimension)
    after = 0
    while rows := (
        yield ask("unsettled_origins", queue_id=state.queue_id, after=after, limit=BATCH)
    ):
        after = rows[-1][0]
        keyed: list[Row] = [
            (state.queue_id, id, share_key(dimension, *origin)) for id, *origin in rows
        ]
        yield ask_many("rekey_jobs", ("queue_id", "id", "key"), keyed)
    yield ask("forget_shares", queue_id=state.queue_id)
    yield ask("count_shares", queue_id=state.queue_id)
    yield from apply_cap(state)


def refresh_key(state: QueueState, job: JobRow) -> Operation[None]:
    """Give *job* the key that it has today: while it was settled, the queue's may have changed."""
    [row] = yield ask("one_job", queue_id=state.queue_id, id=job.id)
    tenant_id, binding_key, trigger_id = row[13:16]
    job.key = share_key(state.dimension, tenant_id, binding_key, trigger_id)
    keyed: list[Row] = [(state.queue_id, job.id, job.key)]
    yield ask_many("rekey_jobs", ("queue_id", "id", "key"), keyed)
    # The share may have been forgotten: it is made again, with nothing in it.
    empty = (state.queue_id, job.key, 0, 0, state.round, None, state.cap, state.deferrals, 0)
    yield ask_many("grow_shares", GROW_COLUMNS, [empty])


def change_cap(state: QueueState, cap: int) -> Operation[None]:
    """Let at most *cap* claims of a key be in flight from now on; 0 is no cap."""
    if cap != state.cap:
        state.cap = cap
        yield ask("set_cap", queue_id=state.queue_id, cap=cap)
        yield from apply_cap(state)


def apply_cap(state: QueueState) -> Operation[None]:
    """Reconsider which keys can be served under the state's cap."""
    yield ask(
        "apply_cap",
        queue_id=state.queue_id,
        cap=state.cap,
        round=state.round,
        deferrals=state.deferrals,
    )
