"""How a claim or a job is settled: ack, fail, release, renew, step, bury, cancel, retry, purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from itertools import chain
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from harn.errors import StorageCorrupt
from harn.storage.codec import decode
from harn.storage.contract import Draft
from harn.storage.log import record_at
from harn.storage.operations import Operation, ask
from harn.storage.queue.attempt_history import EXPIRED, add_history, is_expiry, without_expiry
from harn.storage.queue.dead_jobs import dead_letters, failure_fields
from harn.storage.queue.gathered_records import queue_headers
from harn.storage.queue.job_changes import (
    Change,
    Changes,
    buried,
    cancelled,
    failed,
    purged,
    released,
    retried,
)
from harn.storage.queue.job_index import ACK_HELD, JobRow
from harn.storage.queue.job_records import (
    CANCELLED,
    CLAIMED,
    PARKED,
    READY,
    SETTLED_STATES,
    Settlement,
    SettlementResult,
)
from harn.storage.queue.job_steps import add_steps
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.share_keys import drop_idle, refresh_key
from harn.storage.queue.share_turns import Share
from harn.topics import queue_topics

DROP_EVERY = 512
"""Idle keys are dropped when a job is settled whose id is a multiple of this."""


NewId = Callable[[str], str]
"""Makes an id with a prefix."""


_encode = msgspec.json.encode


def read_bodies(topic: str, ids: Sequence[int]) -> Operation[dict[int, bytes]]:
    """Read the records of some jobs, encoded as they are."""
    rows = yield ask("job_bodies", topic=topic, ids=_encode(ids).decode())
    found = {id: bytes(body or b"") for id, body in rows}  # a lost one reads as damaged
    for id in ids:
        if id not in found:  # an engine that keeps its records elsewhere
            found[id] = yield from record_at(topic, id)
    return found


def settle_all(
    state: QueueState, items: Sequence[Settlement], new_id: NewId
) -> Operation[list[SettlementResult]]:
    """Carry out *items*; return a result for each, in their order."""
    settling = Settling(state, new_id)
    acked = settling.take_acked(items)
    if not acked:
        state.ahead.clear()  # those answers are about to become stale
        if results := (yield from settling.ack_plainly(items)):
            yield from settling.write()
            return results
    left = {item.job_id for item in items} - acked.keys()
    if left:
        state.ahead.clear()
    jobs = yield from jobs_of(state, left)
    results = []
    for item in items:
        if item.job_id in acked:
            results.append(acked[item.job_id])
            continue
        job = jobs.get(item.job_id)
        verdict = judge_claim(job, item)
        if verdict is not None:
            results.append(verdict)
            continue
        assert job is not None
        if item.action == "ack":
            results.append(settling.ack(job, item))
        else:
            results.append((yield from settling.carry_out(job, item)))
    yield from settling.write()
    return results


def jobs_of(state: QueueState, ids: Set[int]) -> Operation[dict[int, JobRow]]:
    """Read the rows of some jobs, by id."""
    if not ids:
        return {}
    wanted = _encode(sorted(ids)).decode()
    rows = yield ask("jobs_by_id", queue_id=state.queue_id, ids=wanted)
    return {row[0]: JobRow(*row) for row in rows}


def judge_claim(job: JobRow | None, item: Settlement) -> SettlementResult | None:
    """Return why a claim cannot be acted on any more; None if it can."""
    if job is None:
        return SettlementResult("lost", note="the job was settled and its record trimmed")
    if job.state == CANCELLED:
        return SettlementResult("lost", note="the job was cancelled")
    if job.claim_id != item.claim_id:
        return SettlementResult("lost", note="another consumer has claimed the job since")
    if job.state in SETTLED_STATES or not job.held:
        return SettlementResult("again")
    return None


class _AckRecord(msgspec.Struct, frozen=True, gc=False):
    """A `job_acked` record."""

    job_event_id: int
    claim_id: str
    consumer_id: str
    acked_at_ms: int
    cost: float | UnsetType = UNSET
    """What it really cost, where that is known."""
    charged_millionths: int | UnsetType = UNSET
    """That cost by the policy that charged the claim, raised to its least charge."""


class Settling:
    """The changes and records of one settle operation, gathered and written together."""

    def __init__(self, state: QueueState, new_id: NewId) -> None:
        self._state = state
        self._new_id = new_id
        self._topics = queue_topics(state.name)
        self._headers = queue_headers(state.name)
        self._changes = Changes(state)
        self._steps: list[Settlement] = []

    def take_acked(self, items: Sequence[Settlement]) -> dict[int, SettlementResult]:
        """Tell of the jobs that were acked ahead, in the order of their responses."""
        rows = self._state.ahead.pop(ACK_HELD, ())
        if not rows:
            return {}
        self._state.now = rows[0][2]
        asked = {item.job_id: item for item in items}
        ids = self._changes.ids = [row[0] for row in rows]
        return {id: self.tell_acked(asked[id]) for id in ids}

    def carry_out(self, job: JobRow, item: Settlement) -> Operation[SettlementResult]:
        """Carry out *item*, which is no ack and whose claim is the current one."""
        if item.action == "step":
            self._steps.append(item)
            return SettlementResult("done")
        if item.action == "renew":
            return (yield from self._renew(job, item))
        if item.action == "release":
            return self._release(job, item)
        return (yield from self._fail(job, item))

    def ack(self, job: JobRow, item: Settlement) -> SettlementResult:
        """Settle *job* as done, with its response."""
        result = self.tell_acked(item)
        self._changes.ack(job, self._response, item.charge)
        return result

    def ack_plainly(self, items: Sequence[Settlement]) -> Operation[list[SettlementResult]]:
        """Ack the jobs of *items* without reading their rows, if all are plain acks of held claims.

        Otherwise nothing has happened, and nothing comes back: then the rows tell what is wrong.
        """
        claims = {
            item.job_id: item.claim_id
            for item in items
            if item.action == "ack" and item.charge is None
        }
        if len(claims) < len(items):
            return []
        first = self._response + 1
        queue_id, now = self._state.queue_id, self._state.now
        if len(items) == 1:  # in one statement, which gives no key if the claim is lost
            [(id, claim_id)] = claims.items()
            about = {"id": id, "claim_id": claim_id, "at": now, "response": first}
            keys = yield ask("ack_one", queue_id=queue_id, **about)
        else:
            listed = _encode(claims).decode()
            keys = yield ask("held_claims", queue_id=queue_id, claims=listed)
        if len(keys) < len(items):
            return []
        self._changes.acked([*claims], chain.from_iterable(keys), first)
        return [self.tell_acked(item) for item in items]

    def tell_acked(self, item: Settlement) -> SettlementResult:
        """Write the records of a job that is settled as done."""
        state = self._state
        record = _AckRecord(
            *(item.job_id, item.claim_id, item.consumer, state.now),
            UNSET if item.cost is None else item.cost,
            UNSET if item.charge is None else item.charge,
        )
        draft = Draft(self._topics.claims, "job_acked", _encode(record), self._headers, state.now)
        state.drafts.append(draft)
        self._state.tally.acked += 1
        return SettlementResult("done", response=self._respond(item))

    @property
    def _response(self) -> int:
        """The offset of the response that was written last."""
        return self._state.responded + self._state.tally.responses

    def _release(self, job: JobRow, item: Settlement) -> SettlementResult:
        record: dict[str, Any] = {"released_at_ms": self._state.now}
        if item.reason is not None:
            record["reason"] = item.reason
        if item.delay_ms:
            record["not_before_ms"] = self._state.now + item.delay_ms
        self._changes.add(job, released(job, record, self._state.now))
        self._claims("job_released", item, record)
        return SettlementResult("done")

    def _fail(self, job: JobRow, item: Settlement) -> Operation[SettlementResult]:
        response = self._respond(item)
        error = item.error or "failed"
        if item.final or 0 < job.max_attempts <= job.attempts:
            yield from self.bury(job, item.consumer, error, told=item, response=self._response)
            return SettlementResult("done", response=response, dead=True)
        record = {"failed_at_ms": self._state.now, "error": error, **_charged(item)}
        if item.delay_ms is not None:
            record["not_before_ms"] = self._state.now + item.delay_ms
        change = failed(job, record, self._state.now)
        change.response = self._response
        self._changes.add(job, change, item.charge)
        self._claims("job_failed", item, record)
        return SettlementResult("done", response=response)

    def _renew(self, job: JobRow, item: Settlement) -> Operation[SettlementResult]:
        until = self._state.now + item.ttl_ms
        history = job.history
        if job.state in (READY, PARKED):  # it expired and was not taken over: hold it again
            [row] = yield ask("one_share", queue_id=self._state.queue_id, key=job.key)
            if 0 < self._state.cap <= Share(*row).in_flight:
                note = "it expired, and its key has as many claims as the cap allows"
                return SettlementResult("lost", note=note)
            history = without_expiry(history)
        self._changes.add(job, Change(CLAIMED, until, 1, job.attempts, None, history))
        record = {"renewed_at_ms": self._state.now, "expires_at_ms": until}
        self._claims("claim_renewed", item, record)
        return SettlementResult("done", expires_at=until)

    def bury(
        self,
        job: JobRow,
        consumer: str,
        error: str,
        *,
        already_told: bool = False,
        told: Settlement | None = None,
        response: int | None = None,
        status: str | None = None,
    ) -> Operation[None]:
        """Settle *job* as dead with its last *error*; *told* is the failure that ended it, if any.

        A worker queue's job gets a dead letter.
        """
        now = self._state.now
        entry = self._new_id("dlq")
        history = job.history
        if not already_told:
            status = status or ("expired" if error == EXPIRED else "failed")
            history = add_history(history, job.attempts, now, status, error)
        attempts = decode(history.encode()) if history else []
        if attempts:  # a retry finds the letter by this id
            attempts[-1]["dlq_entry_id"] = entry
        record = {"dead_at_ms": now, "error": error, "attempts": attempts, **_charged(told)}
        change = buried(job, record, now)
        change.response = response
        self._changes.add(job, change, None if told is None else told.charge)
        about = {"job_event_id": job.id, "claim_id": job.claim_id, "consumer_id": consumer}
        self._add(self._topics.claims, "job_dead", {**about, **record})
        self._state.tally.dead += 1
        self._state.tally.expired += is_expiry(attempts)
        if self._state.pool is not None:
            return  # a failed task is no dead letter
        found = yield from read_bodies(self._topics.jobs, [job.id])
        try:
            body = decode(found[job.id])
        except StorageCorrupt:
            body = None
        if not isinstance(body, dict):
            body = {"event": None}
        letters = dead_letters(entry, self._state.name, job.id, body, attempts, error, told)
        self._state.drafts += letters

    def cancel(self, job: JobRow, by: str, reason: str | None) -> None:
        """Settle *job* as cancelled, whether a consumer works on it or not."""
        record: dict[str, Any] = {
            "job_event_id": job.id,
            "cancelled_by": by,
            "cancelled_at_ms": self._state.now,
            "reason": reason,
        }
        self._changes.add(job, cancelled(job, record, self._state.now))
        self._add(self._topics.claims, "job_cancelled", record)
        self._state.tally.cancelled += 1

    def retry(self, job: JobRow, by: str) -> Operation[None]:
        """Make the dead *job* ready again."""
        yield from refresh_key(self._state, job)
        record = {"job_event_id": job.id, "retried_by": by, "retried_at_ms": self._state.now}
        self._changes.add(job, retried(job, record, self._state.now))
        self._add(self._topics.claims, "job_retried", record)
        self._state.tally.dead -= 1
        self._state.tally.retried += 1

    def purge(self, job: JobRow, by: str, reason: str | None) -> None:
        """Settle *job* as purged."""
        record: dict[str, Any] = {
            "job_event_id": job.id,
            "purged_by": by,
            "purged_at_ms": self._state.now,
        }
        if reason is not None:
            record["reason"] = reason
        self._changes.add(job, purged(job, record, self._state.now))
        self._add(self._topics.claims, "job_purged", record)
        self._state.tally.purged += 1

    def _respond(self, item: Settlement) -> dict[str, Any]:
        response: dict[str, Any] = {
            "queue": self._state.name,
            "job_event_id": item.job_id,
            "claim_id": item.claim_id,
            "consumer_id": item.consumer,
            "handled_at_ms": self._state.now,
            "outcome": msgspec.Raw(item.outcome),
            "error": item.error,
        }
        if item.error is not None:
            response |= failure_fields(item)
        if item.outcome_omitted:
            response["outcome_omitted"] = True
        if item.handler_ms is not None:
            response["handler_ms"] = item.handler_ms
            self._state.tally.handler_ms.append(item.handler_ms)
        self._add(self._topics.responses, "job_response", response)
        self._state.tally.responses += 1
        return response

    def _claims(self, kind: str, item: Settlement, more: dict[str, Any]) -> None:
        about = {"job_event_id": item.job_id, "claim_id": item.claim_id}
        self._add(self._topics.claims, kind, {**about, "consumer_id": item.consumer, **more})

    def _add(self, topic: str, kind: str, record: dict[str, Any]) -> None:
        state = self._state
        state.drafts.append(Draft(topic, kind, _encode(record), self._headers, state.now))

    def write(self) -> Operation[None]:
        """Write every change that was gathered."""
        if self._steps:
            yield from add_steps(self._state, self._steps)
        ids = self._changes.ids
        if not ids:
            return
        self._state.is_changed = True
        yield from self._changes.apply()
        if 0 in [id % DROP_EVERY for id in ids]:
            yield from drop_idle(self._state)


def _charged(told: Settlement | None) -> dict[str, Any]:
    """Return the fields of a failure's record that tell what the attempt really cost."""
    known = {} if told is None else {"cost": told.cost, "charged_millionths": told.charge}
    return {name: value for name, value in known.items() if value is not None}
