"""Jobs that are settled, failed or released together, and the row of each afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from harn.storage.operations import Ask, Operation, Row, ask, ask_many
from harn.storage.queue.attempt_history import add_history
from harn.storage.queue.job_index import JobRow, Shifts
from harn.storage.queue.job_records import (
    ACKED,
    CANCELLED,
    DEAD,
    FAILED,
    PARKED,
    PURGED,
    READY,
    SCHEDULED,
)
from harn.storage.queue.queue_row import QueueState, set_alarm
from harn.storage.queue.share_tree import correct_tree

SETTLE_COLUMNS = (
    *("queue_id", "id", "state", "wake_at", "held", "attempts", "settled_at", "history"),
    "response",
)
REFUND_COLUMNS = ("queue_id", "key", "count", "round")
CORRECT_COLUMNS = ("queue_id", "key", "amount", "round")


class Change(msgspec.Struct):
    """A job's row after it was settled, failed or released."""

    state: int
    wake_at: int | None
    held: int
    attempts: int
    settled_at: int | None
    history: str | None
    response: int | None = None
    """The offset of its response; None keeps the last one, 0 removes it."""


class Changes:
    """Jobs that are settled, failed or released together, and what that does to their shares."""

    def __init__(self, state: QueueState) -> None:
        self._state = state
        self._groups = [_Group()]
        self.ids: list[int] = []
        """The jobs that change."""

    def add(self, job: JobRow, to: Change, charge: int | None = None) -> None:
        """Change *job*; a job may change more than once.

        *charge* is what the attempt is charged in the end, in millionths; None leaves it as it is.
        """
        is_released = to.attempts < job.attempts and job.state != DEAD
        excess = self._excess(job, 0 if is_released else charge)
        group = self._group(is_ack=False, is_corrected=excess != 0)
        state = self._state.ready_for(job.tenant_id) if to.state == READY else to.state
        group.shifts.move(job.key, job.state, state)
        if is_released and job.charged is None and job.claim_round == self._state.round:
            group.refunds[job.key] += 1  # its turn of this round does not count
        group.correct(job, excess)
        group.rows[job.id] = (
            *(job.id, state, to.wake_at, to.held, to.attempts, to.settled_at, to.history),
            to.response,
        )
        self.ids.append(job.id)
        job.state, job.wake_at, job.held = state, to.wake_at, to.held
        job.attempts, job.history = to.attempts, to.history
        if to.wake_at is not None:
            set_alarm(self._state, to.wake_at)

    def ack(self, job: JobRow, response: int | None, charge: int | None = None) -> None:
        """Settle *job* as done; acked jobs are written together, because all change alike."""
        excess = 0 if charge is None else self._excess(job, charge)
        is_ready = job.state == READY and self._state.hierarchy != ""  # its claim had expired
        group = self._group(is_ack=not is_ready, is_corrected=excess != 0)
        group.shifts.move(job.key, job.state, ACKED)
        if excess:
            group.correct(job, excess)
        group.ack(job.id, response)
        self.ids.append(job.id)
        job.state, job.wake_at, job.held = ACKED, None, 0

    def acked(self, ids: list[int], keys: Iterable[str], first_response: int) -> None:
        """Settle claimed jobs of *keys* as done; a lone one is written already, not its share."""
        if len(ids) > 1:
            self._groups[-1].acks.append((first_response, ids))
        self.ids += ids
        for key, number in Counter(keys).items():
            self._groups[-1].shifts.add(key, in_flight=-number)

    def apply(self) -> Operation[None]:
        """Write jobs' new rows and move their work between the counters of their shares."""
        for group in self._groups:
            yield from group.apply(self._state)

    def _excess(self, job: JobRow, charge: int | None) -> int:
        """Return what the claim of *job* was charged too much; less than 0 if it was too little."""
        state = self._state
        if charge is None or job.charged is None:
            return 0
        if state.charge != "cost" and not (state.hierarchy and charge == 0):
            return 0
        return job.charged - charge

    def _group(self, *, is_ack: bool, is_corrected: bool) -> _Group:
        """Return the group for one more job.

        Corrections and changes of a key's ready jobs do not commute: a key without work keeps no
        credit. So that a fold, which sees one job at a time, finds the same credit, such jobs are
        written one after the other. Acks leave the ready jobs alone. In a tree they may change the
        turn of a node that was at its cap, so a correction is written after its own ack.
        """
        group = self._groups[-1]
        in_tree, is_alike = self._state.hierarchy != "", is_ack and group.has_only_acks
        mixes = (is_corrected or group.corrections) and (in_tree or not is_alike)
        if (mixes or (in_tree and not is_alike)) and (group.rows or group.acks):
            group = _Group()
            self._groups.append(group)
        group.has_only_acks = group.has_only_acks and is_ack
        return group


class _Group(msgspec.Struct):
    """Jobs whose changes are written together."""

    rows: dict[int, Row] = {}
    acks: list[tuple[int | None, list[int]]] = []
    """Acked jobs in runs whose responses have consecutive offsets, each after the first one."""
    shifts: Shifts = msgspec.field(default_factory=Shifts)
    refunds: Counter[str] = msgspec.field(default_factory=Counter)
    corrections: Counter[str] = msgspec.field(default_factory=Counter)
    has_only_acks: bool = True

    def ack(self, id: int, response: int | None) -> None:
        """Add a job to the last run of acked ones, or begin another run."""
        if self.acks:
            first, ids = self.acks[-1]
            if first is not None and response == first + len(ids):
                ids.append(id)
                return
        self.acks.append((response, [id]))

    def correct(self, job: JobRow, excess: int) -> None:
        """Return *excess* millionths to the key of *job*, or charge it with what was missing."""
        if excess and job.charged is not None:
            self.corrections[job.key] += excess
            job.charged -= excess

    def apply(self, state: QueueState) -> Operation[None]:
        if self.rows:
            yield from settle_jobs(state, tuple(self.rows.values()))
        for first, ids in self.acks:
            yield ask(
                "ack_jobs",
                queue_id=state.queue_id,
                ids=msgspec.json.encode(ids).decode(),
                response=first,
                at=state.now,
            )
        yield from self.shifts.apply(state)
        if self.refunds:
            yield _add_credit(state, "refund_shares", REFUND_COLUMNS, self.refunds)
        if state.hierarchy:
            yield from correct_tree(state, self.corrections)
        elif self.corrections:
            yield _add_credit(state, "correct_shares", CORRECT_COLUMNS, self.corrections)


def settle_jobs(state: QueueState, rows: Sequence[Row]) -> Operation[None]:
    """Write jobs' new rows: id, state, wakes at, held, attempts, settled at, history, response."""
    yield ask_many("settle_jobs", SETTLE_COLUMNS, [(state.queue_id, *row) for row in rows])


def _add_credit(
    state: QueueState, name: str, columns: tuple[str, ...], amounts: Counter[str]
) -> Ask:
    rows: list[Row] = [
        (state.queue_id, key, amount, state.round) for key, amount in sorted(amounts.items())
    ]
    return ask_many(name, columns, rows)


def failed(job: JobRow, record: dict[str, Any], now: int) -> Change:
    """Note a failed attempt: *job* waits for its claim's expiry, or the backoff in *record*."""
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
    """Make *job* ready or scheduled again; its attempt does not count."""
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
    """Settle *job* as purged."""
    return Change(PURGED, None, 0, job.attempts, now, job.history)
