"""Operations on a worker queue: enqueue, claim, settle, purge.

Each is one transaction: the decision, the records in the queue's topics, and the change of the
index beside them (`jobindex.py`). On PostgreSQL the queue's row is locked first, so operations on
one queue take turns and share one round of the scheduler; on SQLite there is one writer anyway.
Each works on many jobs at a time, in the same few statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harn.storage.codec import decode
from harn.storage.contract import Draft
from harn.storage.deadletters import dead_letters
from harn.storage.jobindex import (
    BATCH,
    EXPIRED,
    Change,
    JobState,
    QueueState,
    Shifts,
    acked,
    add_history,
    add_jobs,
    apply_changes,
    buried,
    change_cap,
    change_keys,
    dedupe_tenant,
    drop_idle,
    failed,
    hold_jobs,
    open_queue,
    purged,
    released,
    serve_shares,
    wake_jobs,
    without_expiry,
)
from harn.storage.jobrecords import (
    ACKED,
    CLAIMED,
    DEAD,
    FAILED,
    PURGED,
    READY,
    Board,
    Choice,
    Choose,
    ClaimedJob,
    JobDraft,
    Settlement,
    SettlementResult,
    Share,
    shown_key,
)
from harn.storage.log import append
from harn.storage.operations import Operation, ask
from harn.storage.triggerfold import write
from harn.topics import WORKER_QUEUES, QueueTopics, queue_topics

PURGE_BATCH = 2000
DROP_EVERY = 64
"""Idle keys are looked for when a job whose id divides by this is settled."""

NewId = Callable[[str], str]
"""Makes an id with a prefix."""

_encode = msgspec.json.encode


class Claiming(msgspec.Struct, frozen=True):
    """Who claims, how much, and by which policy."""

    consumer: str
    claim_ids: tuple[str, ...]
    """One for each job that is wanted."""
    ttl_ms: int
    choose: Choose
    policy: str
    strategy: str
    dimension: str
    cap: int
    triggers: frozenset[str] | None = None
    """The trigger ids that the claimer can handle; None for all, and jobs without one."""


class Claimed(msgspec.Struct, frozen=True):
    """What was claimed, and when it is worth asking again if nothing else happens."""

    jobs: list[ClaimedJob]
    now: int = 0
    next_due: int | None = None


def queue_headers(queue: str) -> bytes:
    """Encode the headers of a queue's claim and response records."""
    return _encode({"queue": queue})


class Work(msgspec.Struct, frozen=True):
    """What is asked of one queue at the same time, done in this order."""

    jobs: Sequence[JobDraft] = ()
    settlements: Sequence[Settlement] = ()
    claims: Sequence[Claiming] = ()
    dedupe_ms: int = 0


class WorkDone(msgspec.Struct, frozen=True):
    """The answers, in the order of the questions."""

    entered: list[tuple[int, bool]]
    settled: list[SettlementResult]
    claimed: list[Claimed]


def work_on(queue: str, work: Work, new_id: NewId) -> Operation[WorkDone]:
    """Enqueue, settle and claim in one transaction, with one look at the queue's row."""
    state = yield from open_queue(queue, create=bool(work.jobs))
    if state is None:
        gone = [SettlementResult("lost", note="the queue is gone") for _ in work.settlements]
        return WorkDone([], gone, [Claimed([]) for _ in work.claims])
    entered: list[tuple[int, bool]] = []
    settled: list[SettlementResult] = []
    claimed: list[Claimed] = []
    if work.jobs:
        entered = yield from _enqueue(state, work.jobs, work.dedupe_ms)
    if work.settlements:
        settled = yield from _settle(state, work.settlements, new_id)
    for claiming in work.claims:
        claimed.append((yield from _claim(state, claiming, new_id)))
    yield from _append(state)
    return WorkDone(entered, settled, claimed)


def _no_ids(prefix: str) -> str:
    raise AssertionError("enqueueing makes no ids")


# -- enqueue -------------------------------------------------------------------------------------


def enqueue_jobs(
    queue: str, jobs: Sequence[JobDraft], dedupe_ms: int
) -> Operation[list[tuple[int, bool]]]:
    """Enter *jobs*, all or none; return each one's id, and whether it was there already."""
    return (yield from work_on(queue, Work(jobs=jobs, dedupe_ms=dedupe_ms), _no_ids)).entered


def _enqueue(
    state: QueueState, jobs: Sequence[JobDraft], dedupe_ms: int
) -> Operation[list[tuple[int, bool]]]:
    places: list[tuple[int, bool]] = []
    fresh: list[JobDraft] = []
    if any(job.dedupe_key is not None for job in jobs):
        places, fresh = yield from _without_duplicates(state, jobs, dedupe_ms)
    else:
        places, fresh = [(-index - 1, False) for index in range(len(jobs))], list(jobs)
    ids: list[int] = []
    if fresh:
        ids = yield from _append_jobs(state, queue_topics(state.name), fresh)
    return [(ids[-place - 1] if place < 0 else place, again) for place, again in places]


def _append_jobs(
    state: QueueState, topics: QueueTopics, jobs: Sequence[JobDraft]
) -> Operation[list[int]]:
    drafts = [Draft(topics.jobs, "trigger_dispatch", job.payload, job.headers) for job in jobs]
    if state.is_new:
        seen = Draft(WORKER_QUEUES, "queue_seen", queue_headers(state.name), b"{}")
        drafts.append(seen)
    landed = yield from append(drafts)
    entered = [(id, at, job) for (id, at), job in zip(landed, jobs, strict=False)]
    yield from add_jobs(state, entered)
    for id, _, job in entered:
        if job.dedupe_key is not None:
            yield ask(
                "bind_dedupe",
                queue_id=state.queue_id,
                tenant_id=dedupe_tenant(job.tenant_id),
                dedupe_key=job.dedupe_key,
                job_id=id,
            )
    return [id for id, _, _ in entered]


def _without_duplicates(
    state: QueueState, jobs: Sequence[JobDraft], dedupe_ms: int
) -> Operation[tuple[list[tuple[int, bool]], list[JobDraft]]]:
    """Find the jobs that are not there yet; a place below zero counts among them."""
    places: list[tuple[int, bool]] = []
    fresh: list[JobDraft] = []
    met: dict[tuple[str, str], int] = {}
    for job in jobs:
        found: int | None = None
        if job.dedupe_key is not None:
            name = (dedupe_tenant(job.tenant_id), job.dedupe_key)
            found = met.get(name)
            if found is None:
                found = yield from _deduped(state, *name, dedupe_ms)
            if found is None:
                met[name] = -len(fresh) - 1
        if found is not None:
            places.append((found, True))
        else:
            fresh.append(job)
            places.append((-len(fresh), False))
    return places, fresh


def _deduped(
    state: QueueState, tenant_id: str, dedupe_key: str, dedupe_ms: int
) -> Operation[int | None]:
    rows = yield ask(
        "find_dedupe", queue_id=state.queue_id, tenant_id=tenant_id, dedupe_key=dedupe_key
    )
    if not rows:
        return None
    job_id, settled_at, known = rows[0]
    fresh = settled_at is None or settled_at + dedupe_ms > state.now
    return int(job_id) if known and fresh else None


# -- claim ---------------------------------------------------------------------------------------


def has_work(queue: str) -> Operation[tuple[bool, int, int | None]]:
    """Tell, without writing, whether a claim may find something, the time, and what is due."""
    rows = yield ask("queue_row", queue=queue)
    if not rows:
        return False, 0, None
    queue_id, now, alarm = rows[0][0], rows[0][1], rows[0][8]
    if alarm is not None and alarm <= now:
        return True, now, alarm
    return bool((yield ask("open_keys", queue_id=queue_id, limit=1))), now, alarm


def claim_jobs(queue: str, claiming: Claiming, new_id: NewId) -> Operation[Claimed]:
    """Hold the jobs that the claimer's policy chooses, until their claims expire."""
    return (yield from work_on(queue, Work(claims=[claiming]), new_id)).claimed[0]


def _claim(state: QueueState, claiming: Claiming, new_id: NewId) -> Operation[Claimed]:
    yield from _settle_due(state, new_id)
    yield from _adopt_policy(state, claiming)
    board = Board(
        queue_id=state.queue_id,
        now=state.now,
        dimension=state.dimension,
        cap=state.cap,
        policy=state.policy,
        round=state.round,
        last_key=state.last_key,
        promoted=bool(state.promoted),
        triggers=(yield from _foreign(state, claiming.triggers)),
    )
    choice = yield from claiming.choose(board, len(claiming.claim_ids))
    if not choice.picks:
        if claiming.cap and (yield ask("held_back_keys", queue_id=state.queue_id)):
            yield ask("add_deferral", queue_id=state.queue_id)
        return Claimed([], state.now, state.alarm)
    jobs = yield from _hold(state, claiming, choice)
    return Claimed(jobs, state.now, state.alarm)


def _adopt_policy(state: QueueState, claiming: Claiming) -> Operation[None]:
    """Let the queue follow the policy of its latest claimer."""
    if state.policy == claiming.policy:
        return
    yield ask("set_policy", queue_id=state.queue_id, policy=claiming.policy)
    keys = (claiming.dimension, claiming.cap)
    if claiming.strategy != "drr" or (state.dimension, state.cap) == keys:
        return
    record = {"fairness_key": keys[0], "cap": keys[1], "changed_at_ms": state.now}
    _note(state, "keys_changed", record)
    yield from change_keys(state, claiming.dimension)
    yield from change_cap(state, claiming.cap)


def _foreign(state: QueueState, triggers: frozenset[str] | None) -> Operation[str | None]:
    """Return the claimer's trigger ids as JSON if the queue has seen any other one."""
    if triggers is None:
        return None
    rows = yield ask("foreign_triggers", queue_id=state.queue_id)
    if all(trigger in triggers for (trigger,) in rows):
        return None
    return _encode(sorted(triggers)).decode()


def _hold(state: QueueState, claiming: Claiming, choice: Choice) -> Operation[list[ClaimedJob]]:
    picks = choice.picks
    topics = queue_topics(state.name)
    found = yield from _records(state, topics.jobs, [pick.id for pick in picks])
    expires = state.now + claiming.ttl_ms
    headers = queue_headers(state.name)
    jobs: list[ClaimedJob] = []
    drafts: list[Draft] = []
    rows: list[tuple[int, str, str, int, int, int | None, int]] = []
    for pick, claim_id in zip(picks, claiming.claim_ids, strict=False):
        attempts, most, body = found[pick.id]
        round = pick.round if claiming.strategy == "drr" else None
        held = (claim_id, claiming.consumer, expires, state.now, round)
        rows.append((pick.id, *held, pick.enqueued_at))
        jobs.append(
            ClaimedJob(
                *(pick.id, body, pick.enqueued_at, attempts + 1, most),
                *(claim_id, expires, state.now),
            )
        )
        record = {
            "job_event_id": pick.id,
            "claim_id": claim_id,
            "consumer_id": claiming.consumer,
            "claimed_at_ms": state.now,
            "expires_at_ms": expires,
            "attempt": attempts + 1,
            "scheduling": _scheduling(state, claiming, pick),
        }
        drafts.append(Draft(topics.claims, "job_claimed", _encode(record), headers, state.now))
    yield from hold_jobs(state, rows)
    yield from _serve(state, claiming, choice)
    if state.alarm is None or expires < state.alarm:
        state.alarm = expires
    yield ask(
        "note_claims",
        queue_id=state.queue_id,
        round=choice.round,
        last_key=choice.last_key,
        promoted=int(choice.promoted),
        promotions=sum(pick.promoted for pick in picks),
        wake_at=expires,
        ages=state.ages,
    )
    state.round, state.last_key, state.promoted = choice.round, choice.last_key, choice.promoted
    state.drafts += drafts
    return jobs


def _scheduling(state: QueueState, claiming: Claiming, pick: Any) -> dict[str, Any]:
    scheduling: dict[str, Any] = {
        "strategy": claiming.strategy,
        "fairness_key": state.dimension,
        "key": shown_key(pick.key),
    }
    if claiming.strategy == "drr":
        scheduling["round"] = pick.round
        scheduling["credit"] = pick.credit
        if pick.promoted:
            scheduling["promoted"] = True
    return scheduling


def _serve(state: QueueState, claiming: Claiming, choice: Choice) -> Operation[None]:
    served = Counter(pick.key for pick in choice.picks)
    if claiming.strategy == "drr":
        promoted = Counter(pick.key for pick in choice.picks if pick.promoted)
        yield from serve_shares(state, served, promoted, choice.shares)
        return
    shifts = Shifts()
    for key, count in served.items():
        shifts.add(key, ready=-count, in_flight=count, selected=count)
    yield from shifts.apply(state)


def _records(
    state: QueueState, topic: str, ids: Sequence[int]
) -> Operation[dict[int, tuple[int, int, bytes]]]:
    """Read jobs with their records: attempts, their limit, and the record's payload."""
    rows = yield ask(
        "claimed_rows", queue_id=state.queue_id, topic=topic, ids=_encode(ids).decode()
    )
    found: dict[int, tuple[int, int, bytes]] = {}
    for id, attempts, most, body in rows:
        if body is None:  # an engine that keeps its records elsewhere
            body = yield from _record(topic, id)
        found[id] = (attempts, most, bytes(body))
    return found


def _record(topic: str, id: int) -> Operation[bytes]:
    rows = yield ask("read_events", topic=topic, after=id - 1, limit=1, budget=1)
    return bytes(rows[0][2]) if rows and rows[0][0] == id else b""


# -- settle --------------------------------------------------------------------------------------


def settle_due(state: QueueState, new_id: NewId) -> Operation[None]:
    """Let lapse what has expired and bury what has no attempt left."""
    yield from _settle_due(state, new_id)
    yield from _append(state)


def _append(state: QueueState) -> Operation[None]:
    drafts, state.drafts = state.drafts, []
    if drafts:
        yield from append(drafts)


def _settle_due(state: QueueState, new_id: NewId) -> Operation[None]:
    if state.alarm is None or state.alarm > state.now:
        return
    rows = yield ask("due_jobs", queue_id=state.queue_id, until=state.now, limit=BATCH)
    exhausted = [row for row in rows if row[2] in (CLAIMED, FAILED) and 0 < row[4] <= row[3]]
    woken = [row for row in rows if row not in exhausted] if exhausted else rows
    if woken:
        record = {"job_event_ids": [row[0] for row in woken], "woken_at_ms": state.now}
        _note(state, "jobs_woken", record)
        yield from wake_jobs(state, woken)
    if exhausted:
        yield from _bury(state, exhausted, new_id)
    [(alarm,)] = yield ask("next_due", queue_id=state.queue_id)
    state.alarm = alarm
    yield ask("set_alarm", queue_id=state.queue_id, alarm=alarm)


def _note(state: QueueState, kind: str, record: dict[str, Any]) -> None:
    topic, headers = queue_topics(state.name).claims, queue_headers(state.name)
    state.drafts.append(Draft(topic, kind, _encode(record), headers, state.now))


def _bury(state: QueueState, rows: Sequence[tuple[Any, ...]], new_id: NewId) -> Operation[None]:
    settling = _Settling(state, new_id)
    for id, key, was, attempts, most, held, claim_id, consumer, wake_at, history in rows:
        job = JobState(id, key, was, wake_at, attempts, most, claim_id, held, history)
        error = EXPIRED
        if was == FAILED:
            error = (decode(history.encode()) if history else [{}])[-1].get("error") or EXPIRED
        yield from settling.bury(job, consumer or "", error, already_told=was == FAILED)
    yield from settling.write()


def settle_claims(
    queue: str, items: Sequence[Settlement], new_id: NewId
) -> Operation[list[SettlementResult]]:
    """Carry out what claims' holders ask for; each is judged alone.

    A superseded claim is `lost`, a second call on a settled claim or job is `again`, and
    neither changes anything.
    """
    return (yield from work_on(queue, Work(settlements=items), new_id)).settled


def _settle(
    state: QueueState, items: Sequence[Settlement], new_id: NewId
) -> Operation[list[SettlementResult]]:
    ids = _encode(sorted({item.job_id for item in items})).decode()
    rows = yield ask("jobs_by_id", queue_id=state.queue_id, ids=ids)
    jobs = {row[0]: JobState(*row) for row in rows}
    settling = _Settling(state, new_id)
    results = []
    for item in items:
        job = jobs.get(item.job_id)
        verdict = _verdict(job, item)
        if verdict is not None:
            results.append(verdict)
            continue
        assert job is not None
        results.append((yield from settling.carry_out(job, item)))
    yield from settling.write()
    return results


def _verdict(job: JobState | None, item: Settlement) -> SettlementResult | None:
    """Decide whether the holder of a claim may still act on it."""
    if job is None:
        return SettlementResult("again")
    if job.claim_id != item.claim_id:
        return SettlementResult("lost", note="another consumer has claimed the job since")
    if job.state in (ACKED, PURGED, DEAD) or not job.held:
        return SettlementResult("again")
    return None


class _Settling:
    """The changes and records of one settle operation, gathered and written together."""

    def __init__(self, state: QueueState, new_id: NewId) -> None:
        self._state = state
        self._new_id = new_id
        self._topics = queue_topics(state.name)
        self._headers = queue_headers(state.name)
        self._before: dict[int, JobState] = {}
        self._after: dict[int, Change] = {}
        self._drafts: list[Draft] = []
        self._totals = {"acked": 0, "purged": 0, "dead": 0, "responses": 0}
        self._wake_at: int | None = None

    def carry_out(self, job: JobState, item: Settlement) -> Operation[SettlementResult]:
        """Do what *item* asks for; its claim is the current one."""
        if item.action == "renew":
            return (yield from self._renew(job, item))
        if item.action == "ack":
            return self._ack(job, item)
        if item.action == "release":
            return self._release(job, item)
        return (yield from self._fail(job, item))

    def _ack(self, job: JobState, item: Settlement) -> SettlementResult:
        self._change(job, acked(job, {}, self._state.now))
        self._claims("job_acked", job, item.consumer, {"acked_at_ms": self._state.now})
        self._totals["acked"] += 1
        return SettlementResult("done", response=self._respond(job, item))

    def _release(self, job: JobState, item: Settlement) -> SettlementResult:
        record: dict[str, Any] = {"released_at_ms": self._state.now}
        if item.reason is not None:
            record["reason"] = item.reason
        if item.delay_ms:
            record["not_before_ms"] = self._state.now + item.delay_ms
        self._change(job, released(job, record, self._state.now))
        self._claims("job_released", job, item.consumer, record)
        return SettlementResult("done")

    def _fail(self, job: JobState, item: Settlement) -> Operation[SettlementResult]:
        response = self._respond(job, item)
        error = item.error or "failed"
        if item.final or 0 < job.max_attempts <= job.attempts:
            yield from self.bury(job, item.consumer, error)
            return SettlementResult("done", response=response, dead=True)
        record: dict[str, Any] = {"failed_at_ms": self._state.now, "error": error}
        if item.delay_ms is not None:
            record["not_before_ms"] = self._state.now + item.delay_ms
        self._change(job, failed(job, record, self._state.now))
        self._claims("job_failed", job, item.consumer, record)
        return SettlementResult("done", response=response)

    def _renew(self, job: JobState, item: Settlement) -> Operation[SettlementResult]:
        until = self._state.now + item.ttl_ms
        history = job.history
        if job.state == READY:  # it lapsed and nobody took over: revive it, if there is room
            [row] = yield ask("one_share", queue_id=self._state.queue_id, key=job.key)
            if 0 < self._state.cap <= Share(*row).in_flight:
                note = "it expired, and its key has as many claims as the cap allows"
                return SettlementResult("lost", note=note)
            history = without_expiry(history)
        self._change(job, Change(CLAIMED, until, 1, job.attempts, None, history))
        record = {"renewed_at_ms": self._state.now, "expires_at_ms": until}
        self._claims("claim_renewed", job, item.consumer, record)
        return SettlementResult("done", expires_at=until)

    def bury(
        self, job: JobState, consumer: str, error: str, *, already_told: bool = False
    ) -> Operation[None]:
        """Move *job* to the dead letters with its last *error*."""
        now = self._state.now
        history = job.history
        if not already_told:
            status = "expired" if error == EXPIRED else "failed"
            history = add_history(history, job.attempts, now, status, error)
        attempts = decode(history.encode()) if history else []
        record = {"dead_at_ms": now, "error": error, "attempts": attempts}
        self._change(job, buried(job, record, now))
        self._claims("job_dead", job, consumer, record)
        self._totals["dead"] += 1
        found = yield from _records(self._state, self._topics.jobs, [job.id])
        try:
            told = decode(found[job.id][2])
        except ValueError:
            told = {"event": None}
        entry = self._new_id("dlq")
        self._drafts += dead_letters(entry, self._state.name, job.id, told, attempts, error)

    def purge(self, job: JobState, by: str, reason: str | None) -> None:
        """Take *job* away."""
        record: dict[str, Any] = {
            "job_event_id": job.id,
            "purged_by": by,
            "purged_at_ms": self._state.now,
        }
        if reason is not None:
            record["reason"] = reason
        self._change(job, purged(job, record, self._state.now))
        self._add(self._topics.claims, "job_purged", record)
        self._totals["purged"] += 1

    def _respond(self, job: JobState, item: Settlement) -> dict[str, Any]:
        response: dict[str, Any] = {
            "queue": self._state.name,
            "job_event_id": job.id,
            "claim_id": item.claim_id,
            "consumer_id": item.consumer,
            "handled_at_ms": self._state.now,
            "outcome": msgspec.Raw(item.outcome),
            "error": item.error,
        }
        if item.outcome_omitted:
            response["outcome_omitted"] = True
        self._add(self._topics.responses, "job_response", response)
        self._totals["responses"] += 1
        return response

    def _claims(self, kind: str, job: JobState, consumer: str, more: dict[str, Any]) -> None:
        record = {"job_event_id": job.id, "claim_id": job.claim_id, "consumer_id": consumer, **more}
        self._add(self._topics.claims, kind, record)

    def _add(self, topic: str, kind: str, record: dict[str, Any]) -> None:
        now = self._state.now
        self._drafts.append(Draft(topic, kind, _encode(record), self._headers, now))

    def _change(self, job: JobState, to: Change) -> None:
        if job.id not in self._before:
            self._before[job.id] = JobState(
                *(job.id, job.key, job.state, job.wake_at, job.attempts),
                *(job.max_attempts, job.claim_id, job.held, job.history, job.claim_round),
            )
        self._after[job.id] = to
        job.state, job.wake_at, job.held = to.state, to.wake_at, to.held
        job.attempts, job.history = to.attempts, to.history
        if to.wake_at is not None:
            self._wake_at = min(self._wake_at or to.wake_at, to.wake_at)

    def write(self) -> Operation[None]:
        """Write everything that was gathered."""
        if not self._after:
            return
        changes = [(self._before[id], to) for id, to in self._after.items()]
        yield from apply_changes(self._state, changes)
        if any(self._totals.values()) or self._wake_at is not None:
            yield ask(
                "add_totals",
                queue_id=self._state.queue_id,
                wake_at=self._wake_at,
                **self._totals,
            )
        if self._wake_at is not None and self._state.alarm is not None:
            self._state.alarm = min(self._state.alarm, self._wake_at)
        elif self._wake_at is not None:
            self._state.alarm = self._wake_at
        if any(id % DROP_EVERY == 0 for id in self._after):
            yield from drop_idle(self._state)
        yield from write(self._drafts)  # a dead letter is also listed with the triggers


def purge_jobs(
    queue: str, after: int, until: int | None, by: str, reason: str | None, new_id: NewId
) -> Operation[tuple[int, int | None, int | None]]:
    """Take away ready and scheduled jobs after an id, some at a time.

    Returns how many went, where to go on (None when done), and the newest job that counts.
    """
    state = yield from open_queue(queue)
    if state is None:
        return 0, None, None
    yield from settle_due(state, new_id)
    if until is None:
        [(newest,)] = yield ask("newest_job", queue_id=state.queue_id)
        until = int(newest or 0)
    rows = yield ask(
        "ready_up_to", queue_id=state.queue_id, after=after, until=until, limit=PURGE_BATCH
    )
    if not rows:
        return 0, None, until
    ids = _encode([row[0] for row in rows]).decode()
    settling = _Settling(state, new_id)
    for row in (yield ask("jobs_by_id", queue_id=state.queue_id, ids=ids)):
        settling.purge(JobState(*row), by, reason)
    yield from settling.write()
    yield from _append(state)
    return len(rows), rows[-1][0], until
