"""One operation on a shared pool: end, cancel, admit, submit and start tasks in one transaction.

The steps are those of a worker queue (`settle.py`, `enter.py`, `claim.py`) under the pool's rules:
at most `max_concurrent` tasks run, backpressure bounds the queue, and submits that wait for a place
get it in the order of their arrival. All of it happens while the queue's row is locked, so it
holds for every process that has the pool open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harn.storage.log import append, head
from harn.storage.operations import Ask, Operation, ask, ask_ahead
from harn.storage.queue.dead_leases import leave_lease
from harn.storage.queue.enter import deduped, enter_jobs, job_drafts
from harn.storage.queue.hold import Claiming, fill_bodies, hold_choice
from harn.storage.queue.job_index import (
    JobRow,
    QueueState,
    ack_held,
    dedupe_tenant,
    open_queue,
    save_queue,
    write_holding,
)
from harn.storage.queue.job_records import (
    CLAIMED,
    PARKED,
    READY,
    SETTLED_STATES,
    ClaimedJob,
    JobDraft,
    Settlement,
    SettlementResult,
)
from harn.storage.queue.notes import note
from harn.storage.queue.parking import move_jobs
from harn.storage.queue.pool_admission import admit_blocked
from harn.storage.queue.pool_cancels import ask_to_cancel, asked_to_cancel
from harn.storage.queue.pool_eviction import Lines, oldest_task, queued_lines
from harn.storage.queue.pool_index import adopt_settings, forget_task
from harn.storage.queue.pool_order import choose_tasks, keys_ahead
from harn.storage.queue.pool_records import (
    Evicted,
    PoolClaim,
    PoolDone,
    PoolSettings,
    PoolSubmit,
    PoolWork,
    Submitted,
    Totals,
    read_pool,
    write_pool,
)
from harn.storage.queue.settle import NewId, Settling, jobs_of, judge_claim, settle_all
from harn.topics import queue_topics

FOREVER_MS = 100 * 365 * 86_400_000
"""The time to live of a claim on a task: it ends with its process's lease, not by itself."""
HEAD = "topic_head"
FENCE = "ended_consumer"
SEEN = "pool_seen"
ADMITTED = Submitted("admit")


class PoolOpened(msgspec.Struct, frozen=True):
    """The settings of a pool, or those that differ from what its opener wants."""

    settings: PoolSettings
    jobs_head: int
    claims_head: int
    changed_nothing: bool = False


def open_pool(queue: str, wanted: PoolSettings) -> Operation[PoolOpened]:
    """Open the pool *queue*, made with these settings if it is new; its cap becomes the wanted one.

    Settings that differ are returned as they are stored; then nothing has changed.
    """
    state = yield from open_queue(queue, create=True)
    assert state is not None
    known = None if state.pool is None else read_pool(state.pool)
    kept = wanted if known is None else known
    created = state.now if known is None else known.created_at_ms
    settings = msgspec.structs.replace(wanted, created_at_ms=created)
    agreed = msgspec.structs.replace(kept, max_concurrent=0, created_at_ms=0)
    is_same = agreed == msgspec.structs.replace(wanted, max_concurrent=0, created_at_ms=0)
    if is_same and settings != known:
        yield from adopt_settings(state, write_pool(settings))
        note(state, "pool_opened", {"settings": state.pool, "opened_at_ms": state.now})
    yield from save_queue(state)
    if state.drafts:
        yield from append(state.drafts, places=False)
    topics = queue_topics(queue)
    return PoolOpened(
        settings if is_same else kept,
        (yield from head(topics.jobs)),
        (yield from head(topics.claims)),
        changed_nothing=not state.drafts,
    )


def work_on_pool(queue: str, work: PoolWork, new_id: NewId) -> Operation[PoolDone | None]:
    """Carry *work* out; None if there is no such pool."""
    state = yield from open_queue(queue, ahead=_ahead(queue, work))
    if state is None or state.pool is None:
        return None
    settings = read_pool(state.pool)
    done = PoolDone(state.now, settings, Totals(0, 0, 0), work.lease)
    return (yield from _Step(state, settings, work, new_id, done).carry_out())


def _ahead(queue: str, work: PoolWork) -> list[Ask]:
    """Return the questions that can be asked with the queue's row, before anything is written."""
    asked = [ask(FENCE, lease=work.lease)]
    if work.ends:
        asked.append(ask(HEAD, topic=queue_topics(queue).responses))
    if work.stopped or work.cancels or work.withdrawals or work.left:
        return asked
    acks = {item.job_id: item.claim_id for item in work.ends if item.action == "ack"}
    if acks:
        asked.append(ack_held(queue, acks))
    # Behind the acks: these are part of what is seen. All other changes come after it.
    asked.append(ask_ahead(SEEN, queue=queue, claims=queue_topics(queue).claims))
    if work.claim is not None and not work.submits:
        asked += keys_ahead(queue, work.claim.order)
    return asked


class _Step:
    """One operation, while it is carried out."""

    def __init__(
        self,
        state: QueueState,
        settings: PoolSettings,
        work: PoolWork,
        new_id: NewId,
        done: PoolDone,
    ) -> None:
        self._state = state
        self._settings = settings
        self._work = work
        self._new_id = new_id
        self._done = done
        self._totals = done.totals
        self._changed_turns = False
        """Whether tasks were queued again or left the queue."""
        self._jobs_written: list[int] = []
        self._claims_written: list[int] = []
        self._claims_head: int | None = None
        """The newest offset of the claims, where it was seen ahead."""

    def carry_out(self) -> Operation[PoolDone]:
        """Carry out every request, in this order."""
        state, work, done = self._state, self._work, self._done
        rows: Any = state.ahead.pop(HEAD, None)
        state.responded = int(rows[0][0]) if rows else 0
        # Asked after the row was locked: what ends the lease's claims has to wait for that lock.
        done.is_fenced = bool(state.ahead.pop(FENCE, ())) or work.is_overdue
        if SEEN in state.ahead:
            [(*_, self._claims_head)] = state.ahead[SEEN]
        yield from self._end()
        for lease in work.left:
            self._changed_turns = True
            while (yield from leave_lease(state, lease, self._new_id)):
                pass
        for id in work.cancels:
            done.cancelled.append((yield from self._cancel(id)))
        for id in work.withdrawals:
            done.withdrawn.append((yield from self._withdraw(id)))
        yield from self._count()
        yield from self._admit_blocked()
        if work.submits:
            yield from self._submit()
        if work.claim is not None and not done.is_fenced:
            yield from self._start(work.claim)
        yield from self._admit_blocked()
        done.totals = self._totals
        is_changed = state.is_changed or state.is_touched or bool(state.drafts)
        done.changed_nothing = not (is_changed or self._jobs_written or self._claims_written)
        yield from self._write()
        yield from fill_bodies(state, done.claimed)
        done.wrote = _range(self._jobs_written), _range(self._claims_written)
        return done

    def _count(self) -> Operation[None]:
        seen = self._state.ahead.pop(SEEN, None)  # not there if what was seen has changed
        if seen is not None:
            [(*row, _)] = seen
        else:
            [row] = yield ask("pool_totals", queue_id=self._state.queue_id)
        self._totals = Totals(*map(int, row))

    def _write(self) -> Operation[None]:
        """Write the queue's row and the records gathered so far."""
        state = self._state
        yield from save_queue(state)
        drafts, state.drafts = state.drafts, []
        if not drafts:
            return
        claims, head = queue_topics(state.name).claims, self._claims_head
        placed = yield from append(drafts, places=head is None)
        if placed:
            ids = [id for item, (id, _) in zip(drafts, placed, strict=True) if item.topic == claims]
        else:  # all that writes to the claims holds the queue's row
            assert head is not None
            count = sum(item.topic == claims for item in drafts)
            ids = [*range(head + 1, head + count + 1)]
        self._claims_written += ids
        if head is not None and ids:
            self._claims_head = ids[-1]

    # -- ends --------------------------------------------------------------------------------

    def _end(self) -> Operation[None]:
        state, work, done = self._state, self._work, self._done
        ends = [item for item in work.ends if item.action != "release"]
        results: dict[int, SettlementResult] = {}
        if ends:
            settled = yield from settle_all(state, ends, self._new_id)
            results = dict(zip(map(id, ends), settled, strict=True))
        for item in work.ends:
            if item.action == "release":  # each alone: a key's turn depends on their order
                self._changed_turns = True
                results[id(item)] = yield from self._release(item)
        done.ended = [results[id(item)] for item in work.ends]
        for item in work.stopped:
            done.stopped.append((yield from self._stop(item)))

    def _release(self, item: Settlement) -> Operation[SettlementResult]:
        """Queue a task again; one that is to be cancelled ends, and its process is told to look."""
        if (yield from asked_to_cancel(self._state, [item.job_id])):
            result = yield from self._stop(item)
            return SettlementResult("again") if result.settled == "done" else result
        [result] = yield from settle_all(self._state, [item], self._new_id)
        return result

    def _stop(self, item: Settlement) -> Operation[SettlementResult]:
        job = yield from self._job(item.job_id)
        verdict = judge_claim(job, item)
        if verdict is not None:
            return verdict
        assert job is not None
        yield from self._settle_cancelled(job, item.reason)
        return SettlementResult("done")

    def _cancel(self, id: int) -> Operation[str]:
        job = yield from self._job(id)
        if job is None or job.state in SETTLED_STATES:
            return "ended"
        if job.state == CLAIMED:  # its slot stays taken until its closure has really ended
            yield from ask_to_cancel(self._state, id, self._work.by)
            return "asked"
        yield from self._settle_cancelled(job, None)
        return "cancelled"

    def _settle_cancelled(self, job: JobRow, reason: str | None) -> Operation[None]:
        self._changed_turns = True
        self._state.ahead.clear()  # what was seen there is about to change
        settling = Settling(self._state, self._new_id)
        settling.cancel(job, self._work.by, reason)
        yield from settling.write()

    def _withdraw(self, id: int) -> Operation[bool]:
        """Undo a submit; false if its task has begun or ended."""
        job = yield from self._job(id)
        if job is None or job.state not in (READY, PARKED):
            return False
        self._changed_turns = True
        note(self._state, "job_withdrawn", {"job_event_id": id})
        yield from forget_task(self._state, job)
        return True

    def _job(self, id: int) -> Operation[JobRow | None]:
        return (yield from jobs_of(self._state, {id})).get(id)

    # -- blocked submits ---------------------------------------------------------------------

    def _admit_blocked(self) -> Operation[None]:
        """Give the free places of the queue to the submits that have waited longest."""
        admitted = yield from admit_blocked(self._state, self._settings, self._totals)
        self._done.admitted += admitted
        if admitted:
            self._changed_turns = True
            self._state.ahead.clear()  # what was seen there has changed

    # -- submits -----------------------------------------------------------------------------

    def _submit(self) -> Operation[None]:
        if self._changed_turns:  # in the log these changes come before the new tasks, too
            yield from self._write()
        entries: list[_NewTask] = []
        for submit in self._work.submits:
            if self._done.is_fenced:
                self._done.submitted.append([Submitted("fenced")] * len(submit.jobs))
                continue
            known = None
            if submit.jobs[0].dedupe_key is not None:
                known = yield from self._known(submit.jobs[0], entries)
            verdicts = self._judge(submit) if known is None else [known]
            self._done.submitted.append(verdicts)
            for place, verdict in enumerate(verdicts):
                if verdict.verdict not in ("known", "refuse"):
                    entries.append(_NewTask(submit.jobs[place], verdicts, place))
        if entries:
            yield from self._enter(entries)
        yield from self._make_room(entries)

    def _known(self, job: JobDraft, entries: Sequence[_NewTask]) -> Operation[Submitted | None]:
        """Return the task that the idempotency key of *job* is bound to."""
        assert job.dedupe_key is not None
        for entry in entries:
            if (entry.job.tenant_id, entry.job.dedupe_key) == (job.tenant_id, job.dedupe_key):
                return Submitted("known", same_as=entry.verdicts)
        # Entering looks the key up again; here it decides whether the submit needs a place.
        tenant, keep_ms = dedupe_tenant(job.tenant_id), self._work.keep_keys_ms
        found = yield from deduped(self._state, tenant, job.dedupe_key, keep_ms)
        return None if found is None else Submitted("known", found)

    def _judge(self, submit: PoolSubmit) -> list[Submitted]:
        """Decide on all tasks of a submit together; a policy that drops decides on each."""
        count = len(submit.jobs)
        if self._settings.is_unbounded:  # the usual pool, and every submit comes here
            self._totals.queued += count
            return [ADMITTED] * count
        first = self._judge_some(submit, count)
        if count == 1 or first.verdict in ("admit", "park", "refuse"):
            return [first] * count
        return [self._judge_some(submit, 1) for _ in submit.jobs]

    def _judge_some(self, submit: PoolSubmit, count: int) -> Submitted:
        totals, slots = self._totals, self._settings.max_concurrent
        met = totals.after_starts(slots)
        verdict = self._work.judge(met, slots, count)
        if submit.at_once and verdict == "refuse":
            verdict = "reject"
        if verdict == "park":
            totals.blocked += count
        elif verdict == "admit":
            totals.queued += count
        return Submitted(verdict, totals=met)

    def _enter(self, entries: Sequence[_NewTask]) -> Operation[None]:
        state = self._state
        jobs = [entry.job for entry in entries]
        entered = yield from enter_jobs(
            state, jobs, job_drafts(state.name, jobs), self._work.keep_keys_ms
        )
        self._jobs_written += [id for id, _ in entered]
        for entry, (id, _) in zip(entries, entered, strict=True):
            entry.place_at(id, state.now)
        parked = [entry.verdict.id for entry in entries if entry.verdict.verdict == "park"]
        if parked:
            note(state, "jobs_blocked", {"job_event_ids": parked})
            yield from move_jobs(state, parked, READY, PARKED)

    def _make_room(self, entries: Sequence[_NewTask]) -> Operation[None]:
        """Reject new tasks, or evict queued ones for them."""
        lines: Lines | None = None
        for new in (entry.verdict for entry in entries):
            victim = None
            if new.verdict == "reject":
                yield from self._reject(new.id)
            elif new.verdict == "evict_oldest":
                victim = yield from oldest_task(self._state)
            elif new.verdict == "evict_longest":
                if lines is None:
                    lines = yield from queued_lines(self._state, self._settings)
                victim = lines.victim(new.id)
            if victim is not None:
                yield from self._reject(victim)
                assert new.totals is not None
                self._done.evicted.append(Evicted(victim, new.id, new.totals.queued))

    def _reject(self, id: int) -> Operation[None]:
        """End a queued task as rejected; it never ran, so its key binds nothing."""
        job = yield from self._job(id)
        assert job is not None
        settling = Settling(self._state, self._new_id)
        settling.purge(job, self._work.by, None)
        yield from settling.write()
        yield ask("unbind_job", queue_id=self._state.queue_id, id=id)

    # -- starts ------------------------------------------------------------------------------

    def _start(self, claim: PoolClaim) -> Operation[None]:
        state, totals = self._state, self._totals
        if claim.known is not None:
            yield from self._find_unknown(claim.lease, claim.known)
        free = self._settings.max_concurrent - totals.running
        if free <= 0 or totals.queued <= 0:
            return
        choice = yield from choose_tasks(state, self._settings, claim, free)
        if not choice.picks:
            return
        claiming = _claiming(claim, self._settings, len(choice.picks))
        self._done.claimed += yield from hold_choice(state, claiming, choice)
        yield from write_holding(state)
        totals.queued -= len(choice.picks)
        totals.running += len(choice.picks)

    def _find_unknown(self, lease: str, known: frozenset[str]) -> Operation[None]:
        """Return the claims that an operation made whose answer the process did not get."""
        where = {"queue_id": self._state.queue_id, "lease": lease}
        for row in (yield ask("claims_of_lease", limit=self._settings.max_concurrent, **where)):
            id, _, _, attempts, most, _, claim_id, _, expires, *_ = row
            if claim_id not in known:
                at = expires - FOREVER_MS
                self._done.claimed.append(
                    ClaimedJob(id, b"", at, attempts, most, claim_id, expires, at)
                )


class _NewTask:
    """A task to be entered: its job, and where its verdict stands."""

    def __init__(self, job: JobDraft, verdicts: list[Submitted], place: int) -> None:
        self.job = job
        self.verdicts = verdicts
        self._place = place

    @property
    def verdict(self) -> Submitted:
        return self.verdicts[self._place]

    def place_at(self, id: int, at: int) -> None:
        """Note the id of the task."""
        found = self.verdict
        self.verdicts[self._place] = Submitted(found.verdict, id, at, found.totals, found.same_as)


def _claiming(claim: PoolClaim, settings: PoolSettings, count: int) -> Claiming:
    def choose(*_: Any) -> Any:
        raise AssertionError("the tasks are chosen already")

    return Claiming(
        consumer=claim.consumer,
        claim_ids=tuple(claim.new_claim_ids(count)),
        ttl_ms=FOREVER_MS,
        look=ask(HEAD),
        choose=choose,
        policy="",
        strategy=settings.order,
        dimension="binding",
        cap=0,
        lease=claim.lease,
    )


def _range(offsets: Sequence[int]) -> range:
    return range(offsets[0], offsets[-1] + 1) if offsets else range(0)
