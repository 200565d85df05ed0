"""A queue's row: an operation locks and reads it, changes it, and writes it back once.

While an operation holds the row, no other process changes the queue. What the operation has decided
is gathered in `QueueState` until then: records to append, claims to write, and what was settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harn.storage.contract import APPEND, Draft
from harn.storage.operations import Ask, Operation, Row, ask, ask_many, ask_together
from harn.storage.queue.job_records import READY
from harn.storage.queue.pauses import Pauses, read_pauses, written
from harn.storage.queue.pool_records import ROTATION, read_pool
from harn.storage.queue.time_histogram import HANDLER_BOUNDS, add_times

CLAIM_COLUMNS = (
    *("queue_id", "id", "claim_id", "consumer", "wake_at", "claimed_at", "claim_round", "lease"),
    "charged",
)


SERVE_COLUMNS = (
    *("queue_id", "key", "served", "promoted", "turn", "round", "credit", "deferrals"),
    *("oldest_at", "known", "refill"),
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
    """A queue's row, as an operation holds it; `save_queue` writes it back.

    Each part is written by few files:

    - what the queue's shares are made by (*dimension*, *cap*, *charge*, *hierarchy*) and its
      *policy*: `share_keys.py`, with a statement of their own;
    - where the rotation stands (*round*, *last_key*, *promoted*, *promotions*), and *ages*: a claim
      (`write_claims.py`), its fold (`job_fold.py`), and `next_turn`. Other keys begin a rotation
      again (`share_keys.py`); the fold of a trim takes its totals over (`retention.py`);
    - *alarm*: `set_alarm`, and `expire.py`, which reads the next one;
    - *paused*: `save_pauses`; *pool*: `pool_index.py`;
    - *tally* and *drafts*: whatever settles, claims or enters jobs adds to them; `saved_row` and
      `write_back.py` take them;
    - *holding*: `write_claims.py`; `write_holding` and `single_statements.py` take it;
    - *ahead*: whatever opens the queue. An answer is taken by the code that asked, and all are
      cleared as soon as a change makes them stale.

    *is_changed* says that the row must be written, *is_touched* that something else was.
    """

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
    """The separator of the names in a key that is a path; empty if keys are not paths."""
    outbox: bool | None = None
    """Whether jobs wait in the outbox; None where the engine has none."""
    is_new: bool = False
    is_changed: bool = False
    is_touched: bool = False
    """Whether anything was written for the queue that is neither its row nor a record."""
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
        """Return the round before a new last turn: the turn comes after all that were given."""
        self.round += 1
        self.is_changed = True
        return self.round - 1

    @property
    def is_due(self) -> bool:
        """Whether a claim may have expired or a job come due."""
        return self.alarm is not None and self.alarm <= self.now


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


def set_alarm(state: QueueState, at: int) -> None:
    """Set the queue's alarm to *at*, unless it is set to an earlier time."""
    if state.alarm is None or at < state.alarm:
        state.alarm = at
        state.is_changed = True


def write_holding(state: QueueState) -> Operation[None]:
    """Write the claims that are decided."""
    holding, state.holding = state.holding, None
    if holding is not None:
        yield ask_many("claim_jobs", CLAIM_COLUMNS, holding.claims)
        if holding.shares:
            yield ask_many("serve_shares", SERVE_COLUMNS, holding.shares)
