"""A queue's log as columns: its jobs, and each step of their lives in the order of the log.

A million jobs are three million records. A history keeps what scheduling needs of them in arrays,
so that it fits into memory and is passed quickly to another process. It is built from rows of the
log (`read_log.py`), and only read after that.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median
from typing import Any

import msgspec

from harn.storage import Row
from harn.storage.queue import PRIORITIES
from harn.workers.scheduler_policy import SchedulerPolicy, read_policy

ENTER, CLAIM, ACK, FAIL, RELEASE, DEAD, CANCEL, PURGE, RETRY, RENEW, WAKE = range(11)
PARK, UNPARK, PAUSE, RESUME, KEYS, POLICY = range(11, 17)

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
Origin = tuple[str | None, str | None, str | None]
"""A job's tenant, binding and trigger."""
Keys = tuple[str, int, str, str]
"""What a queue's keys are, their cap, what a pick costs, and what separates names in a path."""
UNKNOWN = -1
"""No job, no duration, no time."""


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


class Attempt(msgspec.Struct, array_like=True):
    """One recorded attempt at a job: how long it took, and what followed."""

    duration: int = UNKNOWN
    again_after: int = UNKNOWN
    """Milliseconds from its end until the job was ready again; UNKNOWN if it was settled."""
    is_released: bool = False


class History:
    """Jobs are numbered in the order in which they entered; `step_job` and others use numbers."""

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.entered: array[int] = array("q")
        self.due: array[int] = array("q")
        """When a job may be claimed at the earliest."""
        self.priority: array[int] = array("b")
        self.cost: array[float] = array("d")
        self.real_cost: array[float] = array("d")
        """What each job really cost, where an attempt's end tells; else what was expected."""
        self.origin: array[int] = array("l")
        self.origins: list[Origin] = []
        self.duration: array[int] = array("q")
        """Of each job's first attempt; UNKNOWN if it had none, or none that ended."""
        self.again_after: array[int] = array("q")
        self.is_released: array[int] = array("b")
        self.more: dict[int, list[Attempt]] = {}
        """The attempts after the first one, of jobs that had any."""
        self.step_kind: array[int] = array("b")
        self.step_at: array[int] = array("q")
        self.step_job: array[int] = array("l")
        self.step_more: array[int] = array("q")
        """Of a claim its number; of a failure or a release when the job is due again."""
        self.step_charge: array[int] = array("q")
        """What an attempt is charged in the end, in millionths; UNKNOWN: what its claim was."""
        self.claim_consumer: array[int] = array("l")
        self.claim_round: array[int] = array("q")
        self.claim_charged: array[int] = array("q")
        """What a claim was charged, in millionths; UNKNOWN if it cost one credit."""
        self.claim_credit: array[float] = array("d")
        """In millionths where the claim was charged by cost, and a round's grant with it."""
        self.claim_refill: array[int] = array("q")
        self.claim_promoted: array[int] = array("b")
        self.claim_path: array[int] = array("q")
        """Where a claim's path begins in `paths`; UNKNOWN if its key was no path."""
        self.paths: array[int] = array("q")
        """Round, credit and refill of each level, in millionths, for each claim in a tree."""
        self.consumers: list[str] = []
        self.policies: list[SchedulerPolicy] = []
        self.keys: list[Keys] = []
        self.tenants: list[str | None] = []
        """What pauses and resumptions were about, in their order; None is the whole queue."""

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.ids)

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self.step_kind)

    def attempt(self, job: int, number: int) -> Attempt | None:
        """Return a job's attempt, counted from 0; None if it had no such attempt."""
        if number == 0:
            if self.duration[job] == UNKNOWN:
                return None
            return Attempt(self.duration[job], self.again_after[job], bool(self.is_released[job]))
        more = self.more.get(job, ())
        return more[number - 1] if number <= len(more) else None

    def path(self, claim: int, levels: int) -> Sequence[Sequence[int]]:
        """Return round, credit and refill of each level of a claim that was made in a tree."""
        first, paths = self.claim_path[claim], self.paths
        return [paths[first + 3 * level : first + 3 * level + 3] for level in range(levels)]

    def first_step(self, since: int) -> int:
        """Return the first step at or after a time."""
        return bisect_left(self.step_at, since)

    def usual_durations(self) -> dict[int, int]:
        """Return the median duration of a first attempt by origin, and of all under UNKNOWN."""
        found: dict[int, list[int]] = {}
        for origin, duration in zip(self.origin, self.duration, strict=True):
            if duration != UNKNOWN:
                found.setdefault(origin, []).append(duration)
        usual = {origin: int(median(each)) for origin, each in found.items()}
        usual[UNKNOWN] = int(median(usual.values())) if usual else 0
        return usual


class HistoryBuilder:
    """Adds rows of the log to a history: first the jobs', then the claims' of the same offsets."""

    def __init__(self) -> None:
        self.history: History = History()
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
