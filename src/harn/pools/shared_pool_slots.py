"""A shared pool as one process sees it: what runs here, and a mirror of all that does not.

The store decides which task runs where (`harn.storage.queue.shared_pools`). This process runs what
the store gave it, on workers like those of any pool, and sends the store how it ended: a task has
ended when the store says so. `shared_follow.py` brings the mirror up to date with other processes.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.clock import resolve
from harn.durable_calls import durable_names
from harn.durable_work import DurableWork
from harn.errors import HarnError
from harn.eventlog import Receipt
from harn.pools.audit import Dequeued
from harn.pools.options import PoolOptions
from harn.pools.self_deadlock import began_waiting, ended_waiting
from harn.pools.shared_cancels import Cancels, runs_again
from harn.pools.shared_changes import TaskChanges
from harn.pools.shared_ends import TaskClaim, ending_of
from harn.pools.shared_mirror import Mirror, Waiting
from harn.pools.shared_process import Member, PoolProcess
from harn.pools.shared_records import (
    DAMAGED,
    ORDERS,
    DamagedTask,
    StoredTask,
    call_of,
    continue_trace,
    headers_of,
    read_record,
)
from harn.pools.shared_recovery import SharedRecovery
from harn.pools.shared_steps import SharedTaskSteps
from harn.pools.shared_work import START_MORE, TURNS, End, SharedWork, Submit
from harn.pools.slots import PoolState, Slots
from harn.pools.snapshots import TaskStatus
from harn.pools.task import PoolTask
from harn.pools.worker import Worker
from harn.runtime import Runtime
from harn.storage.queue import retention, shared_pools
from harn.telemetry.spans import tracing

if TYPE_CHECKING:
    from harn.pools.shared_follow import Follower


class SharedPoolSlots(Slots):
    """The tasks of a shared pool, and the workers of those that run in this process."""

    linger: int = 0
    """The next task comes with a commit, which takes longer than a few turns of the loop."""
    streak: int = 1000
    """As many as one operation starts: closures that end in the same turn share the next one."""

    __slots__ = (
        "_drain_waiters",
        "called",
        "cancels",
        "changes",
        "elsewhere",
        "follower",
        "here",
        "is_claiming",
        "job_headers",
        "mirror",
        "on_settings",
        "own",
        "process",
        "queue_name",
        "recovery",
        "sending",
        "unbegun",
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
        self.audit: Callable[[Receipt], None] = runtime.event_log.recorder(
            topics.POOL_AUDIT, TURNS + 1
        )
        self.queue_name: str = id
        self.job_headers: bytes = headers_of(id)
        self.mirror: Mirror = Mirror()
        self.blocked: Any = self.mirror.blocked
        self.process: PoolProcess = runtime.service(PoolProcess)
        self.work: SharedWork = SharedWork(
            runtime,
            id,
            options.backpressure,
            options.retention.age_ms,
            self,
        )
        self.here: dict[PoolTask, TaskClaim] = {}
        """The tasks that hold a slot for this process."""
        self.unbegun: deque[PoolTask] = deque()
        """Those of them that no worker has taken yet."""
        self.called: set[Worker] = set()
        """Workers that were called for them and have not begun."""
        self.own: set[PoolTask] = set()
        """Tasks submitted here that have not ended."""
        self.unplaced: dict[str, PoolTask] = {}
        """Tasks on their way to the store, by their names."""
        self.sending: set[PoolTask] = set()
        """Tasks whose submit has not returned."""
        self.unwanted: set[str] = set()
        """Tasks whose submit was undone while it was not known whether the store has them."""
        self.recovery: SharedRecovery = SharedRecovery(self)
        self.cancels: Cancels = Cancels(self)
        self.changes: TaskChanges = TaskChanges(self)
        self.elsewhere: tuple[frozenset[str], int] = frozenset(), 0
        """The functions that other processes run, and when that was read."""
        self.is_claiming: bool = True
        self.follower: Follower | None = None
        self.on_settings: Callable[[shared_pools.PoolSettings], None] = _ignore
        self._drain_waiters: set[asyncio.Future[None]] = set()

    @property
    def member(self) -> Member:
        """This pool, as a member of its process."""
        kept = self.options.retention
        keeping = retention.Keeping(kept.age_ms, kept.age_ms, kept.count)
        recovery = self.recovery
        return Member(self.functions_here, recovery.lose_all, recovery.rejoin, keeping)

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

    @property
    def left(self) -> Sequence[str]:
        """Leases that this process has lost and not yet cleared."""
        return self.recovery.left

    def claim(self) -> shared_pools.PoolClaim | None:
        """Return what this process can run; None if it starts nothing."""
        if not self.is_claiming or not self.process.is_alive:
            return None
        functions = frozenset(self.functions_here())
        lease, new_ids = self.process.lease, self.runtime.ids.uuid7s
        elsewhere, looked_at = self.elsewhere
        known = self.recovery.known_claims()
        order = ORDERS[self.options.queue.kind]
        return shared_pools.PoolClaim(
            lease, lease, functions, elsewhere, looked_at, new_ids, known, order
        )

    def succeeded(self, done: shared_pools.PoolDone, left: Sequence[str]) -> None:
        """Apply what an operation of this process has changed."""
        assert self.follower is not None
        if left:
            self.follower.wake()  # the claims under them are read like changes of another process
        else:
            self.follower.wrote(done)
        self.recovery.succeeded(left)
        if done.is_fenced:
            self.process.note_fenced(done.lease)
        self.adopt_settings(done.settings)
        for evicted in done.evicted:
            self.changes.rejected(evicted.id, evicted.by, evicted.depth)
        for id in done.admitted:
            if self.mirror.is_blocked(id):  # else more is known of it already
                self.note(id, "queued")
        holds = self.process.holds(done.lease) if done.claimed else False
        for claimed in done.claimed:
            self.begin(claimed, done.lease, holds)
        self.call_workers()
        self.changed()

    def failed(self, items: list[Any], given_up: Sequence[Submit]) -> None:
        """Recover from a failed operation; *items* are sent again, those *given_up* undone."""
        for task in [task for submit in given_up for task in submit.tasks]:
            if self.unplaced.pop(task.id, None) is not None:
                self.unwanted.add(task.id)  # the store may have it nevertheless
            else:
                self.cancels.undo_own(task)
        self.recovery.failed(items)

    def adopt_settings(self, settings: shared_pools.PoolSettings) -> None:
        """Follow the settings of the pool's latest opener."""
        if settings.max_concurrent != self.max_concurrent:
            self.max_concurrent = settings.max_concurrent
            self.on_settings(settings)

    def start_more(self) -> None:
        """Ask for tasks that can start."""
        self.work.add(START_MORE)

    def may_start_more(self) -> bool:
        """Tell whether a claim could find a task for this process, as far as is known here."""
        return self.mirror.counts["running"] < self.max_concurrent and self.has_runnable()

    def has_runnable(self) -> bool:
        """Tell whether a task is queued that this process can run, as far as is known here."""
        if not self.mirror.counts["queued"]:
            return False
        known = set(self.functions_here())
        return any(
            task in self.own if task._extras.function is None else task._extras.function in known
            for task in self.mirror.queued()
        )

    def holds_unknown(self) -> bool:
        """Tell whether a call is queued that no process is known to run."""
        known = {None, *self.functions_here(), *self.elsewhere[0]}
        return any(task._extras.function not in known for task in self.mirror.queued())

    # The life of a task.

    def place_own(self, task: PoolTask, id: int, state: Waiting) -> None:
        """Note that the store has *task*, which was submitted here."""
        if self.mirror.by_id.get(id) is task:
            return  # it was read from the store before the answer came: more is known already
        self.unplaced.pop(task.id, None)
        self.own.add(task)
        self.audit(task._submitted)
        self.place(task, id, state)

    def place(self, task: PoolTask, id: int, state: Waiting) -> None:
        """Note that the store knows *task* by *id*."""
        self.mirror.place(task, id, state)
        self.running = self.mirror.counts["running"]

    def note(self, id: int, state: Waiting | None) -> None:
        """Note what a task that has not ended does; None when it has ended."""
        self.mirror.note(id, state)
        self.running = self.mirror.counts["running"]

    def begin(self, claimed: shared_pools.ClaimedJob, lease: str, holds: bool) -> None:
        """Run a task that the store has given to this process, if its lease *holds*."""
        task = self.mirror.by_id.get(claimed.id)
        if task is None:
            task = self.changes.adopt(claimed.id, read_record(claimed.body, claimed.id))
        if task._finished_ms is not None:
            return  # the store has ended the claim since
        self.here[task] = claim = TaskClaim(claimed.claim_id, lease)
        worker = self.recovery.lost.get(task) if self.recovery.lost else None
        if worker is not None:  # an earlier run, whose claim was lost, has not ended yet
            claim.is_ending = True
            worker.aio.add_done_callback(lambda _: self._begin_late(task, claim, claimed))
            return
        self._begin_now(task, claim, claimed, holds)

    def _begin_late(
        self, task: PoolTask, claim: TaskClaim, claimed: shared_pools.ClaimedJob
    ) -> None:
        if self.here.get(task) is claim:
            self._begin_now(task, claim, claimed, self.process.holds(claim.lease))
            self.call_workers()

    def _begin_now(
        self, task: PoolTask, claim: TaskClaim, claimed: shared_pools.ClaimedJob, holds: bool
    ) -> None:
        claim.is_ending = False
        task._stop(False)
        record = None if task._body is not None else read_record(claimed.body, claimed.id)
        if isinstance(record, DamagedTask):
            claim.is_ending = True
            ending_of(self, task, claim, "failed", DAMAGED, queue_again=False).send()
            return
        try:
            has_call = record is None or self._has_call(task, record)
        except HarnError as error:
            self._end_here(task, "failed", error)
            return
        # A closure that is not known here is one whose submit raised an error.
        is_unknown = not has_call and task._extras.function is None
        is_unwanted = is_unknown or claimed.id in self.mirror.asked
        if is_unwanted or not has_call or not holds:
            claim.is_ending = True
            ending_of(self, task, claim, "cancelled", None, not is_unwanted).send()
            return
        self.start(task, claimed.claimed_at)

    def _has_call(self, task: PoolTask, record: StoredTask) -> bool:
        """Prepare the call of *task*; false if its function is not known here any more.

        Raises `HarnError` if its stored arguments do not fit the function.
        """
        call = call_of(record)
        if call is None:
            return False
        task._load_call(call)
        task._place = self.worker_context.copy()
        continue_trace(task, record)
        return True

    def start(self, task: PoolTask, now: int) -> None:
        """Let *task* wait for a worker; the store has given it a slot."""
        task._start(now)
        self.note(task._extras.ticket, "running")
        self.audit(Dequeued(task._submitted, now, self.running - 1))
        if tracing():
            self._trace_start(task)
        if task._place is None:
            task._place = contextvars.copy_context()
        self.unbegun.append(task)

    def call_workers(self) -> None:
        """Call two workers; each of them whose closure has to wait calls two more.

        A worker whose closure never waits goes on to the next task. So a hundred tasks that come
        with one answer begin within a few turns of the loop, and need no hundred workers. Each
        takes its task when it begins, not when it is called: so they begin in the pool's order.
        """
        for _ in range(min(2, len(self.unbegun) - len(self.called))):
            worker = Worker(self)
            self.workers.add(worker)
            self.called.add(worker)

    def give_next(self, worker: Worker) -> None:
        """Give *worker* the task that comes first of those that no worker has taken."""
        self.called.discard(worker)
        worker.take(self.unbegun.popleft())

    def worker_ended(
        self, worker: Worker, task: PoolTask | None, error: BaseException | None
    ) -> None:
        """Forget *worker*, and call others for the tasks that wait."""
        self.called.discard(worker)
        super().worker_ended(worker, task, error)
        self.call_workers()

    def steps_of(self, task: PoolTask) -> DurableWork:
        """Return what records the steps of *task*, a durable call that runs here."""
        return SharedTaskSteps(self, task, self.here.get(task))

    def complete(self, worker: Worker, task: PoolTask, result: Any) -> None:
        """End *task*, whose closure returned *result*, and give *worker* the next task."""
        worker.task = None
        self._end_here(task, "completed", result)
        if self.unbegun:
            self.give_next(worker)

    def finish(self, task: PoolTask, status: TaskStatus, result: Any = None) -> None:
        """End *task*: through the store if it runs here."""
        self._end_here(task, status, result)

    def fill_slot(self) -> None:
        """Give an idle worker a task that waits for one; a free slot is filled by the store."""
        if self.idle and self.unbegun:
            self.give_next(self.idle.pop())

    def _end_here(self, task: PoolTask, status: TaskStatus, result: Any) -> None:
        claim = self.here.get(task)
        if claim is None and self.state in ("closed", "dropped"):  # nothing follows the store now
            self.ended_there(task, status, result)
        if claim is None or claim.is_ending:  # its claim was lost, and the store says how it ends
            return
        claim.is_ending = True
        task._place = None
        if status == "failed":
            self._log_failure(task, result)
        ending_of(self, task, claim, status, result, claim.queue_again).send()

    def end_accepted(self, task: PoolTask, end: End, status: TaskStatus, result: Any) -> None:
        """Apply the end of *task*, which the store has taken; `succeeded` follows."""
        if end.settlement.action == "release" and not end.is_stopped:
            task._queue_again()
            self.note(task._extras.ticket, "queued")
        else:
            self.ended_there(task, status, result)

    def end_refused(self, task: PoolTask) -> None:
        """Read *task* again: its claim does not hold, and the store says how the task stands."""
        assert self.follower is not None
        self.follower.read_soon(task._extras.ticket)

    def ended_there(self, task: PoolTask, status: TaskStatus, result: Any) -> None:
        """Record the end of *task*, which the store has."""
        if task._finished_ms is not None:
            return
        self.own.discard(task)
        self.unplaced.pop(task.id, None)
        self._record_end(task, status, result)
        if (id := task._extras.ticket) > 0:
            self.note(id, None)
        self.mirror.forget_ended(self.ended.tasks, self.ended.most)

    # What can be seen.

    @property
    def queued(self) -> int:
        """How many tasks are queued in the whole pool, with those on their way to it."""
        return self.mirror.counts["queued"] + len(self.unplaced)

    def tasks(self) -> list[PoolTask]:
        """Return every task that is known here, in the order of submit."""
        return [*self.mirror.tasks(), *self.unplaced.values()]

    def pending(self) -> list[PoolTask]:
        """Return the queued tasks in the order of submit, then the running ones."""
        return self.mirror.pending()

    # Closing.

    def changed(self) -> None:
        """Wake what waits for this process's part of the pool to end."""
        for waiter in self._drain_waiters:
            resolve(waiter)
        if self.self_waits.waits:
            self.self_waits.check(self.running)

    async def drain(self) -> None:
        """Wait until what was submitted here, and what runs here, has ended.

        Calls that no process can run stay queued. Cancelling changes nothing.
        """
        while self._unfinished() or self.here:
            if not self._unfinished():
                self.is_claiming = False
            waiter: asyncio.Future[None] = self.runtime.loop.create_future()
            self._drain_waiters.add(waiter)
            task = began_waiting(self, waiter)
            try:
                await waiter
            finally:
                ended_waiting(task, self, waiter)
                self._drain_waiters.discard(waiter)
        self.is_claiming = False

    def _unfinished(self) -> bool:
        if self.cancelling:
            if not self.process.is_alive:  # the store cannot be reached
                return False
            return any(task._extras.function is None for task in self.own)
        known = {*self.functions_here(), *self.elsewhere[0]}
        return any(
            task._extras.function is None or task._extras.function in known for task in self.own
        )

    def cancel(self, task: PoolTask) -> None:
        """End *task* as cancelled: at once if it is queued, else at its closure's next await."""
        self.cancels.cancel(task)

    def cancel_all(self) -> None:
        """Cancel this process's closures and what it runs; queued durable calls stay queued."""
        if self.cancelling:
            return
        self.cancelling = True
        self.is_claiming = False
        for task, claim in self.here.items():
            claim.queue_again = runs_again(task) and not task._stopping
            self.cancels.stop_here(task)
        for task in [each for each in self.own if each._extras.function is None]:
            if task not in self.here:
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
        while self.unbegun:
            self.unbegun.popleft()._queue_again()
        for task in list(self.own):
            if task._finished_ms is None and task._started_ms is None:
                task._explain(stale=shared_pools.UNRUN)
                self.ended_there(task, "failed", f"the pool was dropped: {shared_pools.UNRUN}")
        for worker in self.workers:
            self.runtime.own(worker.aio)
        self.process.abandon(self.queue_name)


def _ignore(settings: shared_pools.PoolSettings) -> None:
    pass
