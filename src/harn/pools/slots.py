"""The slots of a pool: which task runs, on which worker, and how it ends.

A task comes here from `admission.py`. It waits in the queue, or starts at once on a worker
(`worker.py`). Its end is recorded here, and its slot goes to the next task in the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Literal

from harn import topics
from harn.clock import resolve
from harn.context import current_frame_var
from harn.durable_work import DurableWork
from harn.error_text import error_text
from harn.errors import HarnError, PoolClosed, PoolNotFound
from harn.eventlog import Receipt
from harn.pools.audit import Dequeued
from harn.pools.blocked_submitters import BlockedSubmitters
from harn.pools.ended_tasks import EndedTasks
from harn.pools.eviction import EvictingQueue
from harn.pools.idempotency_keys import IdempotencyKeys
from harn.pools.options import PoolOptions
from harn.pools.self_deadlock import SelfWaits, began_waiting, ended_waiting
from harn.pools.snapshots import TaskStatus
from harn.pools.task import PoolTask
from harn.pools.task_ids import Names
from harn.pools.task_queues import TaskQueue
from harn.pools.task_steps import TaskSteps
from harn.pools.worker import Worker
from harn.runtime import Runtime
from harn.tasks import Runner, runner_for
from harn.telemetry.logs import FAILED_WORK
from harn.telemetry.spans import instant_span

if TYPE_CHECKING:
    from harn.pools.persistence import Persistence

logger: logging.Logger = logging.getLogger("harn.pools")

PoolState = Literal["open", "closing", "closed", "dropped"]
"""*dropped* is what `pool_simulate_restart` leaves: the pool is not found any more."""


class Slots:
    """`max_concurrent` slots, the queue before them and the ended tasks behind them."""

    linger: int = 2
    """Turns of the loop that a worker without a task waits for one."""
    streak: int = 64
    """Closures that a worker runs at most before it lets the loop turn."""
    unbegun: Sequence[PoolTask] = ()
    """Tasks that have a slot and no worker yet; only a shared pool has such."""

    __slots__ = (
        "_drained",
        "_runner",
        "audit",
        "blocked",
        "cancelling",
        "ended",
        "idle",
        "is_durable",
        "journal",
        "keys",
        "max_concurrent",
        "names",
        "now",
        "on_loop",
        "options",
        "queue",
        "running",
        "runtime",
        "self_waits",
        "state",
        "worker_context",
        "workers",
    )

    def __init__(self, runtime: Runtime, options: PoolOptions, id: str) -> None:
        self.runtime: Runtime = runtime
        self.options: PoolOptions = options
        self.names: Names = Names(id, options.name)
        self.max_concurrent: int = options.max_concurrent
        self.now: Callable[[], int] = runtime.clock.now_ms
        self.audit: Callable[[Receipt], None] = runtime.event_log.recorder(topics.POOL_AUDIT)
        self.queue: TaskQueue[PoolTask] = _queue(options)
        self.keys: IdempotencyKeys = IdempotencyKeys()
        self.ended: EndedTasks = EndedTasks(options.retention, self.keys)
        self.self_waits: SelfWaits = SelfWaits(options.name)
        self.blocked: BlockedSubmitters = BlockedSubmitters(runtime.loop, self.self_waits)
        self.workers: set[Worker] = set()
        self.idle: list[Worker] = []
        self.worker_context: Context = Context()
        self.worker_context.run(current_frame_var.set, runtime.frame)
        self.on_loop: bool = options.isolation in ("auto", "task")
        self._runner: Runner | None = None
        self.is_durable: bool = options.scope == "pipeline"
        self.journal: Persistence | None = None
        self.running: int = 0
        self.state: PoolState = "open"
        self.cancelling: bool = False
        self._drained: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = f"{self.running} running, {self.queue.live} queued"
        return f"<Pool {self.names.name!r} {state if self.state == 'open' else 'closed'}>"

    # The life of a task.

    def start(self, task: PoolTask, now: int) -> None:
        """Give *task* a free slot and a worker."""
        task._started_ms = now
        slot = self.running
        self.running = slot + 1
        self.audit(Dequeued(task._submitted, now, slot))
        if task._extras.span is not None:
            self._trace_start(task)
        if self.idle:
            self.idle.pop().take(task)
        else:
            self.workers.add(Worker(self, task))

    def finish(self, task: PoolTask, status: TaskStatus, result: Any = None) -> None:
        """Record the end of *task*, free its slot if it had one, and wake its waiters.

        *result* is what the closure returned, or why it failed.
        """
        if task._started_ms is not None:
            self.running -= 1
        if status == "failed":
            self._log_failure(task, result)
        self._record_end(task, status, result)

    def complete(self, worker: Worker, task: PoolTask, result: Any) -> None:
        """Finish *task*, whose closure returned *result*, and give *worker* the next task.

        Worker and slot stay together, which saves most of `finish`, `fill_slot` and `start`. This
        is the end of nearly every task; docs/design/pools.md has the measurement.
        """
        self._record_end(task, "completed", result)
        if self.queue.live and not self.cancelling:
            following: Any = self.queue.pop()
            following._started_ms = now = task._finished_ms
            worker.task = following
            worker.context = following._place
            following._place = worker
            self.audit(Dequeued(following._submitted, now, self.running - 1))  # type: ignore[arg-type]
            if following._extras.span is not None:
                self._trace_start(following)
        else:
            worker.task = None
            self.running -= 1
        if self.blocked.count or self._drained is not None or self.self_waits.waits:
            self.wake_waiters()

    def _record_end(self, task: PoolTask, status: TaskStatus, result: Any) -> None:
        # In place: to ask the task to write these, and its start, costs 3 % of a task.
        task._end = status
        task._body = result
        task._finished_ms = now = self.now()
        task._place = None
        ended = self.ended
        ended.counts[status] += 1
        tasks = ended.tasks
        tasks.append(task)
        if len(tasks) > ended.most or now > ended.next_due:
            ended.forget_old(now)
        if self.journal is not None:
            self.journal.ended(task)
        if task._waiters is not None:
            task._wake()

    def fill_slot(self) -> None:
        """Give a slot that has become free to the task whose turn it is."""
        if self.queue.live and self.running < self.max_concurrent and not self.cancelling:
            task: Any = self.queue.pop()
            self.start(task, self.now())
        if self.blocked.count or self._drained is not None or self.self_waits.waits:
            self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake what can continue now that a task has left its slot or its place in the queue."""
        self.hold_places()
        if self._drained is not None and not self.running and not self.queue.live:
            resolve(self._drained)
            self._drained = None
        self.self_waits.check(self.running)

    def hold_places(self) -> None:
        """Hold places for blocked submitters, as far as there are free ones."""
        if self.blocked.count:
            slots = 0 if self.queue.live else self.max_concurrent - self.running
            depth = self.options.backpressure.max_depth or 0
            self.blocked.hold_places(depth + slots - self.queue.live)

    def cancel(self, task: PoolTask) -> None:
        """End *task* as cancelled: at once if it is queued, else at its closure's next await."""
        task._stop()
        if task.status == "queued":
            if self.held.pop(task, None) is None:
                self.queue.discard(task)
            self.finish(task, "cancelled")
            self.wake_waiters()
            return
        worker = task._worker
        if worker is not None and worker.begun is task:
            worker.stop()

    def withdraw(self, task: PoolTask) -> bool:
        """Undo a submit that was never acknowledged; true if the task was removed.

        A closure that has begun is cancelled. A task that another submit returned too stays.
        """
        if task._finished_ms is not None or task._extras.shared:
            return False
        worker = task._worker
        if worker is not None and worker.is_running(task):
            self.cancel(task)
            return False
        if task.status == "queued":
            self.queue.discard(task)
        else:
            self.running -= 1
        self.keys.unbind(task)
        task._undo()
        self.wake_waiters()
        return True

    # What workers ask for.

    def worker_ended(
        self, worker: Worker, task: PoolTask | None, error: BaseException | None
    ) -> None:
        """Forget *worker*; *task* is the one that it still held, *error* what broke the worker.

        A task that had not begun goes to a new worker.
        """
        self.workers.discard(worker)
        if task is None or task._finished_ms is not None:
            return
        if error is None and not self.cancelling:
            self.workers.add(Worker(self, task))
            return
        self.finish(task, "cancelled" if error is None else "failed", error)
        self.fill_slot()

    def call_workers(self) -> None:
        """Let workers begin the tasks that are `unbegun`."""

    def give_next(self, worker: Worker) -> None:
        """Give *worker* the first task that is `unbegun`."""

    def bind(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Return an async function that runs *fn* where the pool's isolation says."""
        if self._runner is None:
            isolation: Any = self.options.isolation
            self._runner = runner_for(self.runtime, isolation, self.max_concurrent)
        return self._runner.bind(fn)

    def steps_of(self, task: PoolTask) -> DurableWork:
        """Return what records the steps of *task*, a durable call that runs here."""
        return TaskSteps(task)

    async def before_start(self, task: PoolTask) -> None:
        """Journal the start of *task*; an error or a cancel on the way ends the task."""
        if self.journal is None:  # the pool was dropped before this closure could begin
            self._finish_as_dropped(task)
            return
        try:
            await self.journal.starting(task)
        except asyncio.CancelledError:
            if task._finished_ms is None:
                self.finish(task, "cancelled")
        except HarnError as error:
            if task._finished_ms is None:
                self.finish(task, "failed", error)

    # What can be seen.

    @property
    def held(self) -> dict[PoolTask, Any]:
        """The tasks that this process leaves queued in the journal for the next opener."""
        return {} if self.journal is None else self.journal.held

    @property
    def queued(self) -> int:
        """How many tasks are queued, here or for the next opener."""
        return self.queue.live + len(self.held)

    def tasks(self) -> list[PoolTask]:
        """Return every task that the pool still knows, in the order of submit."""
        return sorted((*self.ended.tasks, *self._active(), *self.queue, *self.held), key=_by_seq)

    def find(self, task_id: str) -> PoolTask | None:
        """Return the task with this id, if the pool still knows it."""
        return next((task for task in self.tasks() if task.id == task_id), None)

    def pending(self) -> list[PoolTask]:
        """Return the queued tasks in the order of submit, then the running ones by id."""
        running = sorted(self._active(), key=lambda task: task.id)
        return sorted((*self.queue, *self.held), key=_by_seq) + running

    def _active(self) -> list[PoolTask]:
        held = [worker.task for worker in self.workers]
        return [task for task in held if task is not None and task._finished_ms is None]

    def attributes(self, task: PoolTask) -> dict[str, Any]:
        """Return what a span says of *task*."""
        id, name = self.names.id, self.names.name
        return {"harn.pool.id": id, "harn.pool.name": name, "harn.pool.task": task.id}

    def _trace_start(self, task: PoolTask) -> None:
        # The submit has no span if its process had no tracer provider.
        links = () if task._extras.span is None else (task._extras.span,)
        name = f"pool.dequeue {self.names.name}"
        Context().run(instant_span, name, self.attributes(task), links)

    def _log_failure(self, task: PoolTask, error: Any) -> None:
        raised = error if isinstance(error, BaseException) else None
        text = error if raised is None else error_text(raised)
        args = (self.names.name, task.id, text)
        logger.warning("pool %r: task %s failed: %s", *args, exc_info=raised, extra=FAILED_WORK)

    # Errors.

    def closed_error(self) -> Exception:
        """Return the error of a call that needs the pool to be open."""
        if self.state == "dropped":
            return PoolNotFound(f"pool not found: {self.names.id}")
        return PoolClosed(f"pool {self.names.name!r} is closed and takes no more work")

    def wrong_thread_error(self) -> Exception:
        """Return the error of a call from a thread or a loop that is not the runtime's."""
        return HarnError(
            f"pool {self.names.name!r} lives on its runtime's event loop, and this is another "
            "thread; there: from_thread(pool.submit, fn), from_thread(task.wait)"
        )

    # Closing.

    async def drain(self) -> None:
        """Wait until no task is queued or running. Cancelling changes nothing."""
        while self.running or self.queue.live:
            if self._drained is None:
                self._drained = self.runtime.loop.create_future()
            waiter: asyncio.Future[None] = self.runtime.loop.create_future()
            self._drained.add_done_callback(lambda _, waiter=waiter: resolve(waiter))  # type: ignore[misc]
            task = began_waiting(self, waiter)
            try:
                await waiter
            finally:
                ended_waiting(task, self, waiter)

    def cancel_all(self) -> None:
        """Cancel every task. A journal keeps the queued ones for the next opener."""
        if self.cancelling:
            return
        self.cancelling = True
        held = list(self.held)
        self.held.clear()
        journal, self.journal = self.journal, None  # so that it does not record these ends
        while (task := self.queue.pop()) is not None:
            self.finish(task, "cancelled")
        for task in held:
            self.finish(task, "cancelled")
        self.journal = journal
        for task in self._active():
            self.cancel(task)

    def drop(self) -> None:
        """Forget everything as a process that dies would; running closures continue, detached."""
        self.state = "closed" if self.state == "closing" else "dropped"
        self.cancelling = True
        self.blocked.turn_away(self.closed_error)
        if self.journal is not None:
            self.journal.abandon()
            self.journal = None
        while (task := self.queue.pop()) is not None:
            self._finish_as_dropped(task)
        for worker in self.workers:
            self.runtime.own(worker.aio)

    def _finish_as_dropped(self, task: PoolTask) -> None:
        task._explain(stale="never_started")
        self.finish(task, "failed", "the pool was dropped: never_started")

    async def shut(self) -> None:
        """End workers, threads and journal."""
        while self.workers:
            await asyncio.wait([worker.aio for worker in self.workers])
            await asyncio.sleep(0)
        if self._runner is not None:
            await self._runner.aclose()
        if self.journal is not None:
            await self.journal.aclose()


def _queue(options: PoolOptions) -> TaskQueue[PoolTask]:
    queue, arrivals = options.queue.queue(), options.backpressure.arrivals()
    return queue if arrivals is None else EvictingQueue(queue, arrivals)


def _by_seq(task: PoolTask) -> int:
    return task._submitted.seq
