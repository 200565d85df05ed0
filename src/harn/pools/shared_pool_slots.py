"""A shared pool as one process sees it: what runs here, and a mirror of all that does not.

The store decides which task runs where (`harn.storage.queue.shared_pools`). This process runs what
the store gave it, on workers like those of any pool, and tells the store how it ended: a task has
ended when the store says so. `shared_follow.py` brings the mirror up to date with other processes.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from harn.durable_calls import durable_names
from harn.durable_work import DurableWork
from harn.pools.audit import Dequeued, note_drop
from harn.pools.backpressure import DROP_NEWEST, DROP_OLDEST, RING_LONGEST, RING_OLDEST
from harn.pools.ended_tasks import binding
from harn.pools.options import PoolOptions
from harn.pools.self_deadlock import began_waiting, ended_waiting
from harn.pools.shared_process import Member, PoolProcess
from harn.pools.shared_records import call_of, ending, read_record, task_of
from harn.pools.shared_recovery import Recovery
from harn.pools.shared_steps import SharedTaskSteps
from harn.pools.shared_work import LOOK, Cancel, End, SharedWork, Withdraw
from harn.pools.slots import PoolState, Slots
from harn.pools.snapshots import TaskStatus
from harn.pools.task import PoolTask, Reloaded
from harn.pools.worker import Worker
from harn.runtime import Runtime
from harn.storage.queue import retention, shared_pools

if TYPE_CHECKING:
    from harn.pools.shared_follow import Follower
    from harn.pools.shared_records import TaskRecord

logger: logging.Logger = logging.getLogger("harn.pools")

Waiting = Literal["queued", "running", "blocked"]


class Held:
    """A task that runs here: its claim, and whether a stop lets it be queued again."""

    __slots__ = ("claim_id", "is_ending", "lease", "queue_again")

    def __init__(self, claim_id: str, lease: str) -> None:
        self.claim_id: str = claim_id
        self.lease: str = lease
        self.is_ending: bool = False
        self.queue_again: bool = False


class BlockedHere:
    """The submits of the pool that wait for a place, and the callers here that wait for theirs."""

    def __init__(self) -> None:
        self.count = 0
        """How many submits wait, in all processes."""
        self.callers: dict[int, list[asyncio.Future[None]]] = {}

    def wake(self, id: int) -> None:
        """Wake the callers whose submit *id* waits no more."""
        for caller in self.callers.pop(id, ()):
            if not caller.done():
                caller.set_result(None)

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """End the wait of each caller with an exception of its own."""
        for callers in self.callers.values():
            for caller in callers:
                if not caller.done():
                    caller.set_exception(error())

    def hold_places(self, free: int) -> None:
        """Do nothing: the store gives places out."""


class SharedSlots(Slots):
    """The tasks of a shared pool, and the workers of those that run in this process."""

    __slots__ = (
        "_counts",
        "_drain_waiter",
        "_states",
        "by_id",
        "elsewhere",
        "follower",
        "here",
        "is_claiming",
        "left",
        "on_settings",
        "own",
        "process",
        "queue_name",
        "recovery",
        "sending",
        "unplaced",
        "unwanted",
        "work",
    )

    max_concurrent: int
    running: int
    cancelling: bool
    state: PoolState

    def __init__(self, runtime: Runtime, options: PoolOptions, id: str) -> None:
        super().__init__(runtime, options, id)
        self.queue_name: str = id
        self.blocked: Any = BlockedHere()
        self.process: PoolProcess = runtime.service(PoolProcess)
        self.work: SharedWork = SharedWork(
            runtime,
            id,
            options.backpressure,
            options.retention.age_ms,
            self,
        )
        self.by_id: dict[int, PoolTask] = {}
        """Every task that this process knows, by its id in the store."""
        self.here: dict[PoolTask, Held] = {}
        """The tasks that hold a slot for this process."""
        self.own: set[PoolTask] = set()
        """Tasks submitted here that have not ended."""
        self.unplaced: dict[str, PoolTask] = {}
        """Tasks on their way to the store, by their names."""
        self.sending: set[PoolTask] = set()
        """Tasks whose submit has not returned."""
        self.unwanted: set[str] = set()
        """Tasks whose submit was undone while it was not known whether the store has them."""
        self.left: list[str] = []
        self.recovery: Recovery = Recovery(self)
        self.elsewhere: tuple[frozenset[str], int] = frozenset(), 0
        """The functions that other processes run, and when that was found out."""
        self.is_claiming: bool = True
        self.follower: Follower | None = None
        self.on_settings: Callable[[shared_pools.PoolSettings], None] = _ignore
        self._states: dict[int, Waiting] = {}
        self._counts: dict[Waiting, int] = {"queued": 0, "running": 0, "blocked": 0}
        self._drain_waiter: asyncio.Future[None] | None = None

    @property
    def member(self) -> Member:
        """This pool, as a member of its process."""
        kept = self.options.retention
        keeping = retention.Keeping(kept.age_ms, kept.age_ms, kept.count)
        return Member(self.functions_here, self.lose_all, self._rejoined, keeping)

    def functions_here(self) -> list[str]:
        """Return the durable functions that this process runs for the pool."""
        return durable_names() if self.options.run_here else []

    # What the store is asked, and what it answers.

    @property
    def lease(self) -> str:
        """The lease of this process."""
        return self.process.lease

    @property
    def holds_lease(self) -> bool:
        """Whether it is held at this moment, by this process's own clock."""
        return self.process.holds(self.process.lease)

    def claim(self) -> shared_pools.PoolClaim | None:
        """Return what this process can run; None if it starts nothing."""
        if not self.is_claiming or not self.process.is_alive:
            return None
        functions = frozenset(self.functions_here())
        lease, new_id = self.process.lease, self.runtime.ids.uuid7
        elsewhere, looked_at = self.elsewhere
        known = self.recovery.known_claims()
        return shared_pools.PoolClaim(lease, lease, functions, elsewhere, looked_at, new_id, known)

    def took(self, done: shared_pools.PoolDone, left: Sequence[str]) -> None:
        """Take in what an operation of this process has changed."""
        assert self.follower is not None
        if left:
            self.left = [lease for lease in self.left if lease not in left]
            self.follower.wake()  # what hung on them is read like the acts of another process
        else:
            self.follower.wrote(done)
        self.recovery.succeeded()
        if done.is_fenced:
            self.process.is_fenced(done.lease)
        self.adopt_settings(done.settings)
        for evicted in done.evicted:
            self._rejected(evicted.id, evicted.by, evicted.depth)
        for id in done.admitted:
            if self.is_blocked(id):  # else more is known of it already
                self.note(id, "queued")
        for claimed in done.claimed:
            self.begin(claimed, done.lease)
        self.changed()

    def failed(self, items: list[Any]) -> None:
        """Take in that an operation failed; *items* of it are sent again."""
        self.recovery.failed(items)

    def adopt_settings(self, settings: shared_pools.PoolSettings) -> None:
        """Follow the settings of the pool's latest opener."""
        if settings.max_concurrent != self.max_concurrent:
            self.max_concurrent = settings.max_concurrent
            self.on_settings(settings)

    def look(self) -> None:
        """Ask for tasks that can start."""
        self.work.tell(LOOK)

    def may_start_more(self) -> bool:
        """Tell whether a claim could find a task for this process, as far as is known here."""
        if self._counts["running"] >= self.max_concurrent or not self._counts["queued"]:
            return False
        known = set(self.functions_here())
        for id, state in self._states.items():
            if state != "queued":
                continue
            task = self.by_id[id]
            function = task._extras.function
            if task in self.own if function is None else function in known:
                return True
        return False

    def holds_unknown(self) -> bool:
        """Tell whether a call is queued that no process is known to run."""
        known = {*self.functions_here(), *self.elsewhere[0]}
        functions = {
            self.by_id[id]._extras.function
            for id, state in self._states.items()
            if state == "queued"
        }
        return not functions <= {None, *known}

    # The life of a task.

    def place_own(self, task: PoolTask, id: int, state: Waiting) -> None:
        """Note that the store has *task*, which was submitted here."""
        if self.by_id.get(id) is task:
            return  # it was read from the store before the answer came: more is known already
        self.unplaced.pop(task.id, None)
        self.own.add(task)
        self.audit(task._submitted)
        self.place(task, id, state)

    def place(self, task: PoolTask, id: int, state: Waiting) -> None:
        """Note that the store knows *task* by *id*."""
        task._own_extras().ticket = id
        self.by_id[id] = task
        self.note(id, state)

    def note(self, id: int, state: Waiting | None) -> None:
        """Note what a task that has not ended does; None when it has ended."""
        before = self._states.pop(id, None)
        if before is not None:
            self._counts[before] -= 1
        if state is not None:
            self._states[id] = state
            self._counts[state] += 1
        if before == "blocked" or state != "blocked":
            self.blocked.wake(id)
        self.running = self._counts["running"]
        self.blocked.count = self._counts["blocked"]

    def is_blocked(self, id: int) -> bool:
        """Tell whether a submit waits for a place."""
        return self._states.get(id) == "blocked"

    def begin(self, claimed: shared_pools.ClaimedJob, lease: str) -> None:
        """Run a task that the store has given to this process."""
        task = self.by_id.get(claimed.id)
        if task is None:
            task = self.adopt(claimed.id, read_record(claimed.body))
        if task._finished_ms is not None:
            return  # the store has ended the claim since
        self.here[task] = held = Held(claimed.claim_id, lease)
        for worker in self.workers:
            if worker.begun is task:  # an earlier run, whose claim was lost, has not ended yet
                held.is_ending = True
                worker.aio.add_done_callback(lambda _: self._begin_held(task, held, claimed))
                return
        self._begin_held(task, held, claimed)

    def _begin_held(self, task: PoolTask, held: Held, claimed: shared_pools.ClaimedJob) -> None:
        if self.here.get(task) is not held:
            return
        held.is_ending = task._stopping = False
        has_call = self._has_call(task, claimed)
        if not has_call or not self.process.holds(held.lease):
            held.is_ending = True
            # A closure that is not known here is one whose submit raised an error.
            is_unknown = not has_call and task._extras.function is None
            self._send_end(task, held, "cancelled", None, queue_again=not is_unknown)
            return
        self.start(task, claimed.claimed_at)

    def _has_call(self, task: PoolTask, claimed: shared_pools.ClaimedJob) -> bool:
        """Prepare the call of *task*; false if its function is not known here any more."""
        if task._body is not None:
            return True
        call = call_of(read_record(claimed.body))
        if call is None:
            return False
        task._body = call.closure()
        task._own_extras().call = call
        task._place = self.worker_context.copy()
        return True

    def adopt(self, id: int, record: TaskRecord) -> PoolTask:
        """Return the handle of a task that is read from the store."""
        task = self.unplaced.get(record.task_id)
        if task is not None:
            self.place_own(task, id, "queued")
            return task
        if record.task_id in self.unwanted:
            self.unwanted.discard(record.task_id)
            self.undo(id)
        task = task_of(self, record, self.options.field)
        if record.function is not None:
            task._own_extras().function = record.function
        if record.idempotency_key is not None:
            self.ended.bind(binding(record.tenant_id, record.idempotency_key), task)
        self.place(task, id, "queued")
        return task

    def start(self, task: PoolTask, now: int) -> None:
        """Give *task* a worker; the store has given it a slot."""
        task._started_ms = now
        self.note(task._extras.ticket, "running")
        self.audit(Dequeued(task._submitted, now, self.running - 1))
        if task._extras.span is not None:
            self._trace_start(task)
        if task._place is None:
            task._place = contextvars.copy_context()
        if self.idle:
            self.idle.pop().take(task)
        else:
            self.workers.add(Worker(self, task))

    def steps_of(self, task: PoolTask) -> DurableWork:
        """Return what records the steps of *task*, a durable call that runs here."""
        return SharedTaskSteps(self, task, self.here.get(task))

    def complete(self, worker: Worker, task: PoolTask, result: Any) -> None:
        """End *task*, whose closure returned *result*, and let *worker* go."""
        worker.task = None
        self._end_here(task, "completed", result)

    def finish(self, task: PoolTask, status: TaskStatus, result: Any = None) -> None:
        """End *task*: through the store if it runs here."""
        if task in self.here:  # otherwise its claim was lost, and the store says how it ends
            self._end_here(task, status, result)

    def fill_slot(self) -> None:
        """Do nothing: the operation that ends a task also starts the next."""

    def _end_here(self, task: PoolTask, status: TaskStatus, result: Any) -> None:
        held = self.here.get(task)
        if held is None or held.is_ending:
            return
        held.is_ending = True
        task._place = None
        if status == "failed":
            self._log_failure(task, result)
        self._send_end(task, held, status, result, held.queue_again)

    def _send_end(
        self, task: PoolTask, held: Held, status: TaskStatus, result: Any, queue_again: bool
    ) -> None:
        now = self.now()
        started = now if task._started_ms is None else task._started_ms
        settlement = ending(task, held.claim_id, held.lease, status, result, started, now)
        end = End(settlement, is_stopped=status == "cancelled" and not queue_again)
        self.work.tell(end, Ending(self, task, held, end, status, result))

    def end_is_known(self, task: PoolTask, end: End, status: TaskStatus, result: Any) -> None:
        """Take in that the store has taken the end of *task*."""
        if end.settlement.action == "release" and not end.is_stopped:
            task._started_ms = None
            self.note(task._extras.ticket, "queued")
        else:
            self._ended(task, status, result)
        self.changed()

    def end_is_refused(self, task: PoolTask) -> None:
        """Take in that the claim on *task* does not hold: the store says how the task stands."""
        assert self.follower is not None
        self.follower.read_soon(task._extras.ticket)

    def _ended(self, task: PoolTask, status: TaskStatus, result: Any) -> None:
        """Record the end of *task*, which the store has."""
        if task._finished_ms is not None:
            return
        self.own.discard(task)
        self.unplaced.pop(task.id, None)
        self._record_end(task, status, result)
        if (id := task._extras.ticket) > 0:
            self.note(id, None)
        if len(self.by_id) > 2 * self.ended.most + 1000:
            kept = {each._extras.ticket for each in self.ended.tasks}
            self.by_id = {
                id: task for id, task in self.by_id.items() if id in kept or id in self._states
            }

    def stand_for(self, task: PoolTask, known: PoolTask) -> None:
        """End *task*, which has no place of its own, as *known* has ended."""
        task._end, task._body, task._finished_ms = known._end, known._body, known._finished_ms
        task._wake()

    def _rejected(self, id: int, by: int | None, depth: int) -> None:
        """Take in that a queued task was dropped for another submit."""
        victim = self.by_id.get(id)
        if victim is None or victim._finished_ms is not None:
            return
        decision = self._drop()
        victim._own_extras().reason = (decision.reason, decision.policy, None)
        self.ended.unbind(victim)
        self._ended(victim, "rejected", None)
        replacement = None if by is None else self.by_id.get(by)
        log, most = self.runtime.event_log, self.options.backpressure.max_depth
        note_drop(log, victim, replacement, decision, depth, most)

    def reject(self, task: PoolTask, depth: int) -> None:
        """Take in that *task*, just submitted, was rejected."""
        self._rejected(task._extras.ticket, None, depth)

    def _drop(self) -> Any:
        policy = self.options.backpressure
        if policy.kind == "ring_buffer":
            return RING_LONGEST if policy.evict == "longest" else RING_OLDEST
        return DROP_OLDEST if policy.on_full == "drop_oldest" else DROP_NEWEST

    # What other processes did.

    def apply(self, job: shared_pools.StoredJob) -> None:
        """Bring the mirror of one task up to date."""
        assert job.record is not None
        task = self.by_id.get(job.id)
        if task is None:
            task = self.adopt(job.id, read_record(job.record))
        if task._finished_ms is not None:
            return
        if job.state in SETTLED:
            if task in self.here:
                self._lose(task)
            self._apply_end(task, job)
        elif task in self.here:
            return  # what this process knows of it is newer
        elif job.state == shared_pools.READY:
            task._started_ms = None
            self.note(job.id, "queued")
        elif job.state == shared_pools.CLAIMED:
            task._started_ms = (
                job.now if job.wake_at is None else job.wake_at - shared_pools.FOREVER_MS
            )
            self.note(job.id, "running")
        elif job.state == shared_pools.PARKED and self._states.get(job.id) != "running":
            self.note(job.id, "blocked")

    def _apply_end(self, task: PoolTask, job: shared_pools.StoredJob) -> None:
        answer = Answered()
        if job.answer is not None:
            answer = msgspec.json.decode(job.answer, type=Answered)
            task._started_ms = answer.handled_at_ms - answer.handler_ms
        if job.state == shared_pools.ACKED:
            text = msgspec.json.decode(answer.outcome) if answer.outcome_omitted else None
            self._ended(task, "completed", Reloaded(answer.outcome, text))
        elif job.state == shared_pools.CANCELLED:
            self._ended(task, "cancelled", None)
        elif job.state == shared_pools.PURGED:
            decision = self._drop()
            task._own_extras().reason = (decision.reason, decision.policy, None)
            self.ended.unbind(task)
            self._ended(task, "rejected", None)
        else:
            last = (msgspec.json.decode(job.history) if job.history else [{}])[-1]
            stale = {"expired": shared_pools.CUT_OFF, shared_pools.UNRUN: shared_pools.UNRUN}.get(
                last.get("status")
            )
            error = last.get("error")
            if stale is not None:
                task._own_extras().reason = (None, None, stale)
                error = (
                    f"the process that ran it died: {stale}"
                    if stale == shared_pools.CUT_OFF
                    else error
                )
            self._ended(task, "failed", error)
        if task._finished_ms is not None and job.settled_at is not None:
            task._finished_ms = job.settled_at

    def forget(self, id: int) -> None:
        """Forget a task whose submit was undone."""
        task = self.by_id.pop(id, None)
        self.note(id, None)
        if task is not None:
            self.ended.unbind(task)
            self.own.discard(task)
            if task in self.sending:  # its submit, which waits here, sends it again
                task._own_extras().ticket = 0
            elif task._finished_ms is None:
                task._finished_ms, task._end = task._submitted.at, "cancelled"
                task._wake()

    # Cancelling, and losing the lease.

    def cancel(self, task: PoolTask) -> None:
        """End *task* as cancelled: at once if it is queued, else at its closure's next await."""
        task._stopping = True
        if task in self.here:
            worker = task._place
            if isinstance(worker, Worker) and worker.begun is task:
                worker.stop()
        elif (id := task._extras.ticket) > 0:
            self.ask_until_answered(Cancel(id), self._cancel_answered)

    def _cancel_answered(self, id: int, answer: str) -> None:
        task = self.by_id.get(id)
        if answer == "cancelled" and task is not None:
            self._ended(task, "cancelled", None)
            self.changed()

    def undo(self, id: int) -> None:
        """Undo the submit of a task; cancel the task if it has begun."""
        self.ask_until_answered(Withdraw(id), self._undone)

    def _undone(self, id: int, is_undone: bool) -> None:
        task = self.by_id.get(id)
        if is_undone:
            self.forget(id)
        elif task is not None:
            self.cancel(task)

    def ask_until_answered(
        self, item: Cancel | Withdraw, answered: Callable[[int, Any], None]
    ) -> None:
        """Ask for *item*, again if the operation fails; *answered* is called with its result."""

        def take(asked: asyncio.Future[Any]) -> None:
            if asked.cancelled() or self.state in ("closed", "dropped"):
                return
            if asked.exception() is None:
                answered(item, asked.result())
            else:
                self.recovery.failed([lambda: self.ask_until_answered(item, answered)])

        self.work.ask(item).add_done_callback(take)

    def lose_all(self, lease: str) -> None:
        """Cancel what runs here: the *lease* that its slots hang on is lost."""
        self.work.hold(True)
        self.left.append(lease)
        for task in list(self.here):
            self._lose(task)

    def _lose(self, task: PoolTask) -> None:
        del self.here[task]
        worker = task._place
        if not isinstance(worker, Worker):
            return
        task._place = worker.context  # for its next run, if that is here
        if worker.begun is task:
            worker.stop()
        else:
            worker.task = None

    def _rejoined(self) -> None:
        assert self.follower is not None
        self.work.hold(False)
        self.look()
        self.follower.catch_up_soon()  # records that told of an end may be trimmed meanwhile

    def waiting_ids(self) -> list[int]:
        """Return the tasks that have not ended, as far as is known here."""
        return list(self._states)

    def vanished(self, id: int) -> None:
        """Take in that the store has no task *id*: it has ended, and its record was trimmed."""
        task = self.by_id.get(id)
        if task is not None and task not in self.sending:
            self._ended(task, "failed", "it ended while this process was away; how was trimmed")

    # What can be seen.

    @property
    def queued(self) -> int:
        """How many tasks are queued in the whole pool, with those on their way to it."""
        return self._counts["queued"] + len(self.unplaced)

    def tasks(self) -> list[PoolTask]:
        """Return every task that is known here, in the order of submit."""
        return [*(self.by_id[id] for id in sorted(self.by_id)), *self.unplaced.values()]

    def pending(self) -> list[PoolTask]:
        """Return the queued tasks in the order of submit, then the running ones."""
        placed = [(state, self.by_id[id]) for id, state in sorted(self._states.items())]
        running = [task for state, task in placed if state == "running"]
        return [task for state, task in placed if state != "running"] + running

    # Closing.

    def changed(self) -> None:
        """Wake what waits for this process's part of the pool to end."""
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)
        if self.self_waits.waits:
            self.self_waits.check(self.running)

    async def drain(self) -> None:
        """Wait until what was submitted here, and what runs here, has ended.

        Calls that no process can run stay queued. Cancelling changes nothing.
        """
        while self._unfinished() or self.here:
            if not self._unfinished():
                self.is_claiming = False
            self._drain_waiter = waiter = self.runtime.loop.create_future()
            task = began_waiting(self, waiter)
            try:
                await waiter
            finally:
                ended_waiting(task, self, waiter)
                self._drain_waiter = None
        self.is_claiming = False

    def _unfinished(self) -> bool:
        if self.cancelling:
            if not self.process.is_alive:  # the store cannot be told
                return False
            return any(task._extras.function is None for task in self.own)
        known = {*self.functions_here(), *self.elsewhere[0]}
        return any(
            task._extras.function is None or task._extras.function in known for task in self.own
        )

    def cancel_all(self) -> None:
        """Cancel this process's closures and what it runs; queued durable calls stay queued."""
        if self.cancelling:
            return
        self.cancelling = True
        self.is_claiming = False
        for task, held in self.here.items():
            call = task._extras.call
            held.queue_again = call is not None and call.function.rerun
        for task in [*self.here, *(each for each in self.own if each._extras.function is None)]:
            self.cancel(task)

    async def shut(self) -> None:
        """End workers and threads, and this process's part of the pool."""
        await super().shut()
        if self.follower is not None:
            await self.follower.stop()
        await self.process.leave(self.queue_name)

    def drop(self) -> None:
        """Forget everything as a process that dies would; running closures continue, detached."""
        self.state = "closed" if self.state == "closing" else "dropped"
        self.cancelling, self.is_claiming = True, False
        self.work.hold(True)
        self.blocked.turn_away(self.closed_error)
        self.here.clear()
        for task in list(self.own):
            if task._finished_ms is None and task._started_ms is None:
                task._own_extras().reason = (None, None, shared_pools.UNRUN)
                self._ended(task, "failed", f"the pool was dropped: {shared_pools.UNRUN}")
        for worker in self.workers:
            self.runtime.own(worker.aio)
        self.process.abandon(self.queue_name)


SETTLED = (shared_pools.ACKED, shared_pools.DEAD, shared_pools.PURGED, shared_pools.CANCELLED)


class Answered(msgspec.Struct):
    """The response to a job, as far as a task needs it."""

    outcome: msgspec.Raw = msgspec.Raw(b"null")
    outcome_omitted: bool = False
    handled_at_ms: int = 0
    handler_ms: int = 0


class Ending:
    """Receives the store's answer to the end of a task."""

    __slots__ = ("_end", "_held", "_result", "_slots", "_status", "_task")

    def __init__(
        self,
        slots: SharedSlots,
        task: PoolTask,
        held: Held,
        end: End,
        status: TaskStatus,
        result: Any,
    ) -> None:
        self._slots = slots
        self._task = task
        self._held = held
        self._end = end
        self._status = status
        self._result = result

    def done(self) -> bool:
        """Whether the end needs no answer: never."""
        return False

    def set_result(self, result: shared_pools.SettlementResult) -> None:
        """Take the answer in."""
        if not self._is_held():  # claimed again since, or lost with the lease
            self._slots.end_is_refused(self._task)
            return
        del self._slots.here[self._task]
        if result.settled == "done":
            self._slots.end_is_known(self._task, self._end, self._status, self._result)
        else:  # lost, or settled before: by a process that ended our claim, or by this very end
            self._slots.end_is_refused(self._task)

    def set_exception(self, error: BaseException) -> None:
        """Send the end again, as long as the claim may hold."""
        slots = self._slots
        if not self._is_held() or slots.state in ("closed", "dropped"):
            return
        clock = slots.runtime.clock
        clock.call_at(clock.monotonic() + 0.5, self._again, background=True)

    def _again(self) -> None:
        if self._is_held():
            self._slots.work.tell(self._end, self)

    def _is_held(self) -> bool:
        return self._slots.here.get(self._task) is self._held

    def cancel(self) -> None:
        """Note that the operation was cancelled."""
        self.set_exception(asyncio.CancelledError())


def _ignore(settings: shared_pools.PoolSettings) -> None:
    pass
