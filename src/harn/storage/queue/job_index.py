"""The queue index beside the log: a queue's row, as an operation holds it, and its shares' sums.

Live operations (`claim.py`) decide, append the records, and change the index in the same
transaction, many jobs at a time. `job_fold.py` makes the same changes from records read back from
the log, so a rebuilt index equals the live one. Changes that only time brings (`expire.py`) have a
record too, written by the process that notices them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harn.storage.contract import APPEND, Draft
from harn.storage.operations import Ask, Operation, Row, ask, ask_ahead, ask_many, ask_together
from harn.storage.queue.job_records import CLAIMED, FAILED, PARKED, READY, SCHEDULED, share_key
from harn.storage.queue.pauses import Pauses, read_pauses, written
from harn.storage.queue.pool_records import ROTATION, read_pool
from harn.storage.queue.share_tree import shift_tree
from harn.storage.queue.time_histogram import HANDLER_BOUNDS, add_times
from harn.topics import queue_topics

BATCH = 500
ACK_HELD = "ack_held"
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


def write_holding(state: QueueState) -> Operation[None]:
    """Write the claims that are decided."""
    holding, state.holding = state.holding, None
    if holding is not None:
        yield ask_many("claim_jobs", CLAIM_COLUMNS, holding.claims)
        if holding.shares:
            yield ask_many("serve_shares", SERVE_COLUMNS, holding.shares)


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


def dedupe_tenant(tenant_id: str | None) -> str:
    """Return the tenant part of a dedupe key; without a tenant, a name that no tenant can have."""
    return share_key("tenant", tenant_id, None, None)
