"""Reads the records of a queue's log into the columns of a history."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec

from harn.storage import Row
from harn.storage.queue import PRIORITIES
from harn.workers.scheduler_policy import SchedulerPolicy, read_policy
from harn.workers.whatif.history import (
    ACK,
    CANCEL,
    CLAIM,
    DEAD,
    ENTER,
    FAIL,
    KEYS,
    PARK,
    PAUSE,
    POLICY,
    PURGE,
    RELEASE,
    RENEW,
    RESUME,
    RETRY,
    UNKNOWN,
    UNPARK,
    WAKE,
    Attempt,
    Origin,
    QueueHistory,
)

KINDS = {
    "job_claimed": CLAIM,
    "job_acked": ACK,
    "job_failed": FAIL,
    "job_released": RELEASE,
    "job_dead": DEAD,
    "job_cancelled": CANCEL,
    "job_purged": PURGE,
    "job_retried": RETRY,
    "claim_renewed": RENEW,
    "jobs_woken": WAKE,
    "jobs_parked": PARK,
    "jobs_unparked": UNPARK,
    "queue_paused": PAUSE,
    "queue_resumed": RESUME,
    "keys_changed": KEYS,
}


class _JobRecord(msgspec.Struct):
    priority: str = "normal"
    tenant_id: str | None = None
    binding_key: str | None = None
    trigger_id: str | None = None
    not_before_ms: int | None = None
    delay_ms: int | None = None
    cost: float = 1


class _Scheduling(msgspec.Struct):
    strategy: str
    fairness_key: str = "tenant"
    round: int = 0
    credit: float = 0
    charged_millionths: int = UNKNOWN
    credit_millionths: int = 0
    refill_millionths: int = 0
    promoted: bool = False
    policy: dict[str, Any] | None = None
    path: list[tuple[int, int, int]] | None = None


class _ClaimsRecord(msgspec.Struct):
    """Any record of a queue's claims, as far as it is needed."""

    job_event_id: int = UNKNOWN
    consumer_id: str | None = None
    scheduling: _Scheduling | None = None
    not_before_ms: int | None = None
    job_event_ids: list[int] = []
    fairness_key: str = "tenant"
    cap: int = 0
    charge: str = "jobs"
    hierarchy: str = ""
    tenant_id: str | None = None
    cost: float | None = None
    charged_millionths: int = UNKNOWN


_read_job = msgspec.json.Decoder(_JobRecord).decode
_read_claims = msgspec.json.Decoder(_ClaimsRecord).decode


class HistoryBuilder:
    """Adds rows of the log to a history: first the jobs', then the claims' of the same offsets."""

    def __init__(self) -> None:
        self.history: QueueHistory = QueueHistory()
        self.damaged: int = 0
        self._origins: dict[Origin, int] = {}
        self._consumers: dict[str, int] = {}
        self._policy: SchedulerPolicy | None = None
        self._attempts = array("l")
        self._began = array("q")
        """Of each job, when its present attempt began; UNKNOWN between attempts."""
        self._ended = array("q")

    def add_jobs(self, rows: Iterable[Row]) -> None:
        """Add records of the jobs' topic: (order, offset, kind, payload, headers, time)."""
        for _, id, kind, payload, _, at in rows:
            try:
                record = _read_job(payload)
                priority = PRIORITIES.index(record.priority)
            except (msgspec.DecodeError, ValueError, TypeError):
                self.damaged += 1
                continue
            if kind == "trigger_dispatch":
                self._add_job(id, at, record, priority)

    def _add_job(self, id: int, at: int, record: _JobRecord, priority: int) -> None:
        history = self.history
        origin = (record.tenant_id, record.binding_key, record.trigger_id)
        number = self._origins.get(origin)
        if number is None:
            number = self._origins[origin] = len(history.origins)
            history.origins.append(origin)
        due = record.not_before_ms or at
        if record.delay_ms is not None:
            due = at + record.delay_ms
        history.ids.append(id)
        history.entered.append(at)
        history.due.append(max(at, due))
        history.priority.append(priority)
        history.cost.append(record.cost)
        history.real_cost.append(record.cost)
        history.origin.append(number)
        history.duration.append(UNKNOWN)
        history.again_after.append(UNKNOWN)
        history.is_released.append(0)
        self._attempts.append(0)
        self._began.append(UNKNOWN)
        self._ended.append(UNKNOWN)
        self._step(ENTER, at, len(history.ids) - 1)

    def add_claims(self, rows: Iterable[Row]) -> None:
        """Add records of the claims' topic."""
        for _, _, name, payload, _, at in rows:
            kind = KINDS.get(name)
            if kind is None:
                continue
            try:
                record = _read_claims(payload)
            except (msgspec.DecodeError, TypeError):
                self.damaged += 1
                continue
            if kind == CLAIM:
                self._add_claim(at, record)
            elif kind in (PAUSE, RESUME):
                self.history.tenants.append(record.tenant_id)
                self._step(kind, at, UNKNOWN, len(self.history.tenants) - 1)
            elif kind == KEYS:
                kinds = (record.fairness_key, record.cap, record.charge, record.hierarchy)
                self.history.keys.append(kinds)
                self._step(kind, at, UNKNOWN, len(self.history.keys) - 1)
            else:
                for id in record.job_event_ids or (record.job_event_id,):
                    self._add_end(kind, at, id, record)

    def _add_claim(self, at: int, record: _ClaimsRecord) -> None:
        history, scheduling = self.history, record.scheduling
        job = self._number(record.job_event_id)
        if scheduling is None or job == UNKNOWN:
            return
        self._follow(at, scheduling)
        name = record.consumer_id or ""
        consumer = self._consumers.get(name)
        if consumer is None:
            consumer = self._consumers[name] = len(history.consumers)
            history.consumers.append(name)
        self._step(CLAIM, at, job, len(history.claim_round))
        history.claim_consumer.append(consumer)
        path = scheduling.path
        history.claim_round.append(scheduling.round if path is None else path[0][0])
        history.claim_path.append(UNKNOWN if path is None else len(history.paths))
        history.paths.extend(chain.from_iterable(path or ()))
        history.claim_charged.append(scheduling.charged_millionths)
        history.claim_credit.append(scheduling.credit or scheduling.credit_millionths)
        history.claim_refill.append(scheduling.refill_millionths)
        history.claim_promoted.append(scheduling.promoted)
        self._began[job] = at
        self._attempts[job] += 1

    def _follow(self, at: int, scheduling: _Scheduling) -> None:
        """Note the policy of a claim where it changes.

        The log of an older version names only its strategy and what the keys are.
        """
        policy = self._policy
        if scheduling.policy is not None:
            policy = read_policy(scheduling.policy)
        elif policy is None or policy.strategy != scheduling.strategy:
            cap = self.history.keys[-1][1] if self.history.keys else 0
            policy = SchedulerPolicy(
                strategy=scheduling.strategy,  # type: ignore[arg-type]
                fairness_key=scheduling.fairness_key,  # type: ignore[arg-type]
                max_concurrent_per_key=cap,
            )
        if policy != self._policy:
            self._policy = policy
            self.history.policies.append(policy)
            self._step(POLICY, at, UNKNOWN, len(self.history.policies) - 1)

    def _add_end(self, kind: int, at: int, id: int, record: _ClaimsRecord) -> None:
        job, not_before = self._number(id), record.not_before_ms
        if job == UNKNOWN:
            return
        more = UNKNOWN if not_before is None else not_before
        self._step(kind, at, job, more, record.charged_millionths)
        if record.cost is not None:
            self.history.real_cost[job] = record.cost
        if kind in (RENEW, PARK, UNPARK):
            return
        if self._began[job] != UNKNOWN:  # an attempt ends
            duration, self._began[job], self._ended[job] = at - self._began[job], UNKNOWN, at
            again = UNKNOWN
            if kind == WAKE:
                again = 0
            elif kind == RELEASE:
                again = 0 if not_before is None else not_before - at
            elif kind == FAIL and not_before is not None:
                again = not_before - at
            self._end(job, Attempt(duration, again, kind == RELEASE))
        elif kind in (WAKE, RETRY) and self._ended[job] != UNKNOWN:
            self._returned(job, at - self._ended[job])

    def _end(self, job: int, attempt: Attempt) -> None:
        history = self.history
        if self._attempts[job] == 1:
            history.duration[job] = attempt.duration
            history.again_after[job] = attempt.again_after
            history.is_released[job] = attempt.is_released
        else:
            history.more.setdefault(job, []).append(attempt)

    def _returned(self, job: int, after: int) -> None:
        """Note that *job*, whose last attempt had ended, was made ready again."""
        history = self.history
        if self._attempts[job] == 1:
            if history.again_after[job] == UNKNOWN:
                history.again_after[job] = after
        elif (more := history.more.get(job)) and more[-1].again_after == UNKNOWN:
            more[-1].again_after = after

    def _step(
        self, kind: int, at: int, job: int, more: int = UNKNOWN, charge: int = UNKNOWN
    ) -> None:
        history = self.history
        last = history.step_at[-1] if history.step_at else at
        history.step_kind.append(kind)
        history.step_at.append(max(at, last))  # the topics of a log may differ by a millisecond
        history.step_job.append(job)
        history.step_more.append(more)
        history.step_charge.append(charge)

    def _number(self, id: int) -> int:
        """Return the number of the job with this id; UNKNOWN if its record is gone."""
        ids = self.history.ids
        if not ids:
            return UNKNOWN
        place = id - ids[0]
        if not (0 <= place < len(ids) and ids[place] == id):
            place = bisect_left(ids, id)
        return place if place < len(ids) and ids[place] == id else UNKNOWN
