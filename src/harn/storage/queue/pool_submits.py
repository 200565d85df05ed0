"""How submits become tasks of a shared pool: each is judged, then entered with the others.

A submit is known by its idempotency key, or the pool's policy judges it: its tasks are admitted,
wait for a place, end as rejected, evict queued ones, or are not made at all. Then all tasks that
are made enter the queue together.
"""

from __future__ import annotations

from collections.abc import Sequence

from harn.storage.operations import Operation, ask
from harn.storage.queue.dedupe_keys import dedupe_tenant, deduped
from harn.storage.queue.enqueue import enter_jobs, job_drafts
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_records import PARKED, READY, JobDraft
from harn.storage.queue.parked_jobs import move_jobs
from harn.storage.queue.pool_eviction import Lines, oldest_task, queued_lines
from harn.storage.queue.pool_records import (
    Evicted,
    PoolDone,
    PoolSettings,
    PoolSubmit,
    PoolWork,
    SubmitResult,
    Totals,
)
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.settle import NewId, Settling, jobs_of

ADMITTED = SubmitResult("admit")


class Submits:
    """The submits of one operation; they update its results and the pool's totals."""

    def __init__(
        self,
        state: QueueState,
        settings: PoolSettings,
        work: PoolWork,
        new_id: NewId,
        done: PoolDone,
        totals: Totals,
    ) -> None:
        self._state = state
        self._settings = settings
        self._work = work
        self._new_id = new_id
        self._done = done
        self._totals = totals

    def carry_out(self) -> Operation[Sequence[int]]:
        """Judge every submit and enter the tasks; return their ids."""
        entries: list[_NewTask] = []
        for submit in self._work.submits:
            if self._done.is_fenced:
                self._done.submitted.append([SubmitResult("fenced")] * len(submit.jobs))
                continue
            known = None
            if submit.jobs[0].dedupe_key is not None:
                known = yield from self._known(submit.jobs[0], entries)
            verdicts = self._judge(submit) if known is None else [known]
            self._done.submitted.append(verdicts)
            for place, verdict in enumerate(verdicts):
                if verdict.verdict not in ("known", "refuse"):
                    entries.append(_NewTask(submit.jobs[place], verdicts, place))
        if not entries:
            return ()
        ids = yield from self._enter(entries)
        yield from self._make_room(entries)
        return ids

    def _known(self, job: JobDraft, entries: Sequence[_NewTask]) -> Operation[SubmitResult | None]:
        """Return the task that the idempotency key of *job* is bound to."""
        assert job.dedupe_key is not None
        for entry in entries:
            if (entry.job.tenant_id, entry.job.dedupe_key) == (job.tenant_id, job.dedupe_key):
                return SubmitResult("known", same_as=entry.verdicts)
        # Entering looks the key up again; here it decides whether the submit needs a place.
        tenant, keep_ms = dedupe_tenant(job.tenant_id), self._work.keep_keys_ms
        found = yield from deduped(self._state, tenant, job.dedupe_key, keep_ms)
        return None if found is None else SubmitResult("known", found)

    def _judge(self, submit: PoolSubmit) -> list[SubmitResult]:
        """Decide on all tasks of a submit together; a policy that drops decides on each."""
        count = len(submit.jobs)
        if self._settings.is_unbounded:  # the usual pool, and every submit comes here
            self._totals.queued += count
            return [ADMITTED] * count
        first = self._judge_some(submit, count)
        if count == 1 or first.verdict in ("admit", "park", "refuse"):
            return [first] * count
        return [self._judge_some(submit, 1) for _ in submit.jobs]

    def _judge_some(self, submit: PoolSubmit, count: int) -> SubmitResult:
        totals, slots = self._totals, self._settings.max_concurrent
        met = totals.after_starts(slots)
        verdict = self._work.judge(met, slots, count)
        if submit.at_once and verdict == "refuse":
            verdict = "reject"
        if verdict == "park":
            totals.blocked += count
        elif verdict == "admit":
            totals.queued += count
        return SubmitResult(verdict, totals=met)

    def _enter(self, entries: Sequence[_NewTask]) -> Operation[Sequence[int]]:
        state = self._state
        jobs = [entry.job for entry in entries]
        entered = yield from enter_jobs(
            state, jobs, job_drafts(state.name, jobs), self._work.keep_keys_ms
        )
        for entry, (id, _) in zip(entries, entered, strict=True):
            entry.place_at(id, state.now)
        parked = [entry.verdict.id for entry in entries if entry.verdict.verdict == "park"]
        if parked:
            note(state, "jobs_blocked", {"job_event_ids": parked})
            yield from move_jobs(state, parked, READY, PARKED)
        return [id for id, _ in entered]

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
        job = (yield from jobs_of(self._state, {id}))[id]
        settling = Settling(self._state, self._new_id)
        settling.purge(job, self._work.by, None)
        yield from settling.write()
        yield ask("unbind_job", queue_id=self._state.queue_id, id=id)


class _NewTask:
    """A task to be entered: its job, and where its verdict stands."""

    def __init__(self, job: JobDraft, verdicts: list[SubmitResult], place: int) -> None:
        self.job = job
        self.verdicts = verdicts
        self._place = place

    @property
    def verdict(self) -> SubmitResult:
        return self.verdicts[self._place]

    def place_at(self, id: int, at: int) -> None:
        """Note the id of the task."""
        found = self.verdict
        self.verdicts[self._place] = SubmitResult(
            found.verdict, id, at, found.totals, found.same_as
        )
