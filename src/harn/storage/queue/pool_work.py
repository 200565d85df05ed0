"""One operation on a shared pool: end, cancel, admit, submit and start tasks in one transaction.

The steps are those of a worker queue (`settle.py`, `enqueue.py`, `claim.py`) under the rules of the
pool: at most `max_concurrent` tasks run, backpressure bounds the queue, and submits that wait for a
place get it in the order of their arrival. All of it happens while the queue's row is locked, so it
holds for every process that has the pool open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harn.storage.log import append
from harn.storage.operations import Ask, Operation, ask, ask_ahead
from harn.storage.queue.dead_leases import leave_lease
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_index import JobRow, ack_held
from harn.storage.queue.job_records import (
    CLAIMED,
    PARKED,
    READY,
    SETTLED_STATES,
    ClaimedJob,
    Settlement,
    SettlementResult,
)
from harn.storage.queue.pool_admission import admit_blocked
from harn.storage.queue.pool_cancels import ask_to_cancel, asked_to_cancel
from harn.storage.queue.pool_index import forget_task
from harn.storage.queue.pool_order import choose_tasks, keys_ahead
from harn.storage.queue.pool_records import (
    PoolClaim,
    PoolDone,
    PoolSettings,
    PoolWork,
    Totals,
    read_pool,
)
from harn.storage.queue.pool_submits import Submits
from harn.storage.queue.queue_row import QueueState, open_queue, save_queue, write_holding
from harn.storage.queue.settle import NewId, Settling, jobs_of, judge_claim, settle_all
from harn.storage.queue.write_claims import Claiming, fill_bodies, hold_choice
from harn.topics import queue_topics

FOREVER_MS = 100 * 365 * 86_400_000
"""The time to live of a claim on a task: it ends with its process's lease, not by itself."""
HEAD = "topic_head"
FENCE = "ended_consumer"
SEEN = "pool_seen"


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
        self._state.ahead.clear()  # those answers are about to become stale
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
            self._state.ahead.clear()  # those answers are stale now

    # -- submits -----------------------------------------------------------------------------

    def _submit(self) -> Operation[None]:
        if self._changed_turns:  # in the log these changes come before the new tasks, too
            yield from self._write()
        submits = Submits(
            self._state, self._settings, self._work, self._new_id, self._done, self._totals
        )
        self._jobs_written += yield from submits.carry_out()

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
