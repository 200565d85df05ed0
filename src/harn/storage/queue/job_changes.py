"""Jobs that are settled, failed or released together, and the row of each afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from harn.storage.operations import Operation, Row, ask, ask_many
from harn.storage.queue.attempt_history import add_history
from harn.storage.queue.job_index import JobRow, QueueState, Shifts, look_by, settle_jobs
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

REFUND_COLUMNS = ("queue_id", "key", "count", "round")


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
        """Settle *job* as done; acked jobs are written together, because all change alike."""
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
