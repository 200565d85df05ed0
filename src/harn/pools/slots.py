"""The slots of a pool: who holds them, who gets them next, and how it all ends.

`_start` gives a task a slot and a worker, the worker runs it, `_finish` records its end and `_next`
passes the slot on. Each step is complete between two awaits, so the counts add up whenever anyone
looks. `Pool` adds the door: what may be submitted, and when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.clock import resolve
from harn.context import current_frame_var
from harn.errors import HarnError, PoolClosed, PoolNotFound
from harn.pools.audit import Dequeued
from harn.pools.ended_tasks import Memory
from harn.pools.options import PoolOptions
from harn.pools.self_deadlock import SelfWaits
from harn.pools.snapshots import TaskStatus
from harn.pools.task import ClosureFrame, ClosureTask, PoolTask, describe
from harn.pools.task_ids import Names
from harn.pools.worker import Worker
from harn.runtime import Runtime
from harn.sync import GRANTED, Waiter, WaitQueue
from harn.tasks import Runner, runner_for, works_for
from harn.telemetry.logs import FAILED_WORK
from harn.telemetry.spans import instant_span

if TYPE_CHECKING:
    from harn.pools.persistence import Persistence

logger = logging.getLogger("harn.pools")


class Slots:
    """`max_concurrent` slots, the queue before them and the memory behind them."""

    __slots__ = (
        "__weakref__",
        "_audit",
        "_blocked",
        "_blocked_count",
        "_bounded",
        "_cancelling",
        "_closing",
        "_created_ms",
        "_drained",
        "_field",
        "_gone",
        "_held",
        "_idle",
        "_is_durable",
        "_journal",
        "_log",
        "_memory",
        "_names",
        "_now",
        "_on_closed",
        "_on_loop",
        "_order",
        "_policy",
        "_queue",
        "_refusing",
        "_runner",
        "_running",
        "_self_waits",
        "_seq",
        "_shutting",
        "_worker_context",
        "_workers",
        "id",
        "max_concurrent",
        "name",
        "options",
        "runtime",
        "scope",
        "scope_id",
    )

    def __init__(self, runtime: Runtime, options: PoolOptions, id: str) -> None:
        self.runtime = runtime
        self.options = options
        self.id = id
        self.name = options.name
        self.max_concurrent = options.max_concurrent
        self.scope = options.scope
        self.scope_id = options.scope_id
        self._on_closed: Callable[[Any], None] | None = None
        """Told once, when the pool has closed and its name is free."""
        self._now = runtime.clock.now_ms
        self._created_ms = self._now()
        self._names = Names(id, options.name)
        self._log = runtime.event_log
        self._audit = runtime.event_log.recorder(topics.POOL_AUDIT)
        self._policy = options.backpressure
        self._bounded = options.backpressure.kind != "unbounded"
        self._field = options.field
        self._queue = options.queue.queue()
        self._order = options.backpressure.order()
        self._memory = Memory(options.retention)
        self._blocked: WaitQueue[Waiter] = WaitQueue()
        """Submitters that wait for a place in a full queue."""
        self._blocked_count = 0
        """How many submitters wait, those included for which a place is held."""
        self._held = 0
        """Places that are held for submitters until these have resumed and take them."""
        self._self_waits = SelfWaits(options.name)
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._worker_context = Context()
        self._worker_context.run(current_frame_var.set, runtime.frame)
        self._on_loop = options.isolation in ("auto", "task")
        self._runner: Runner | None = None
        self._is_durable = options.scope == "pipeline"
        self._journal: Persistence | None = None
        self._seq = 0
        self._running = 0
        self._refusing = False
        self._closing = False
        self._cancelling = False
        self._gone = False
        self._drained: asyncio.Future[None] | None = None
        self._shutting: asyncio.Task[None] | None = None

    # Running.

    def _start(self, task: PoolTask, now: int) -> None:
        task._started_ms = now
        slot = self._running
        self._running = self._self_waits.running = slot + 1
        self._audit(Dequeued(task._submitted, now, slot))
        if task._more.span is not None:
            self._trace_start(task)
        if self._idle:
            self._idle.pop().take(task)
        else:
            self._workers.add(Worker(self, task))

    def _trace_start(self, task: PoolTask) -> None:
        name, links = f"pool.dequeue {self.name}", (task._more.span,)
        Context().run(instant_span, name, self._attributes(task), links)

    def _finish(self, task: PoolTask, status: TaskStatus, result: Any = None) -> None:
        """Record the end of *task* and wake those who wait for it; a slot it had is free.

        *result* is what it returned, or why it failed.
        """
        if task._started_ms is not None:
            self._running = self._self_waits.running = self._running - 1
        if status == "failed":
            self._log_failure(task, result)
        task._end = status
        task._body = result
        task._finished_ms = now = self._now()
        task._place = None
        memory = self._memory
        memory.counts[status] += 1
        memory.ended.append(task)
        if len(memory.ended) > memory.count or now > memory.next_due:
            memory.forget_old(now)
        if self._journal is not None:
            self._journal.ended(task)
        if task._waiters is not None:
            task._wake()

    def _log_failure(self, task: PoolTask, error: Any) -> None:
        raised = error if isinstance(error, BaseException) else None
        text = error if raised is None else describe(raised)
        told = (self.name, task.id, text)
        logger.warning("pool %r: task %s failed: %s", *told, exc_info=raised, extra=FAILED_WORK)

    def _complete(self, worker: Worker, task: PoolTask, result: Any) -> None:
        """Finish *task* and give *worker* the next one.

        This is `_finish`, `_next` and `_start` in one, for the case that happens all the time: the
        closure has returned, and its worker and its slot go on to whatever is queued.
        """
        task._end = "completed"
        task._body = result
        task._finished_ms = now = self._now()
        task._place = None
        memory = self._memory
        memory.counts["completed"] += 1
        ended = memory.ended
        ended.append(task)
        if len(ended) > memory.count or now > memory.next_due:
            memory.forget_old(now)
        if self._journal is not None:
            self._journal.ended(task)
        if task._waiters is not None:
            task._wake()
        if self._queue.live and not self._cancelling:
            following: Any = self._queue.pop()
            if self._order is not None:
                self._order.discard(following)
            following._started_ms = now
            worker.task = following
            worker.context = following._place
            following._place = worker
            self._audit(Dequeued(following._submitted, now, self._running - 1))
            if following._more.span is not None:
                self._trace_start(following)
        else:
            worker.task = None
            self._running = self._self_waits.running = self._running - 1
        if self._blocked or self._drained is not None or self._self_waits.waits:
            self._settled()

    def _next(self) -> None:
        """Pass a slot that has come free to the task whose turn it is."""
        if self._queue.live and self._running < self.max_concurrent and not self._cancelling:
            task: Any = self._queue.pop()
            if self._order is not None:
                self._order.discard(task)
            self._start(task, self._now())
        if self._blocked or self._drained is not None or self._self_waits.waits:
            self._settled()

    def _settled(self) -> None:
        """Look who can go on now that a task has left its place."""
        self._grant_places()
        if self._drained is not None and not self._running and not self._queue.live:
            resolve(self._drained)
            self._drained = None
        self._self_waits.check()

    def _leave_queue(self, task: PoolTask) -> None:
        self._queue.discard(task)
        if self._order is not None:
            self._order.discard(task)

    def _cancel(self, task: PoolTask) -> None:
        task._stopping = True
        if task.status == "queued":
            self._leave_queue(task)
            self._finish(task, "cancelled")
            self._settled()
            return
        worker = task._worker
        if worker is not None and worker.begun is task:
            worker.stop()

    def _worker_died(self, task: PoolTask, error: BaseException | None) -> None:
        """Take back a task whose worker ended under it: cancelled before it began, or broken."""
        if task._finished_ms is not None:
            return
        if error is None and not self._cancelling and not self._gone:
            self._workers.add(Worker(self, task))
            return
        self._finish(task, "cancelled" if error is None else "failed", error)
        self._next()

    def _bind(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Return something async that runs *fn* where the pool's isolation says."""
        if self._runner is None:
            isolation: Any = self.options.isolation
            self._runner = runner_for(self.runtime, isolation, self.max_concurrent)
        return self._runner.bind(fn)

    async def _before_start(self, task: PoolTask) -> None:
        """Let the journal know before the closure begins; whatever goes wrong ends the task."""
        if self._journal is None:  # the pool was dropped before this closure could begin
            task._own().reason = (None, None, "never_started")
            self._finish(task, "failed", "the pool was dropped: never_started")
            return
        try:
            await self._journal.starting(task)
        except asyncio.CancelledError:
            if task._finished_ms is None:
                self._finish(task, "cancelled")
        except HarnError as error:
            if task._finished_ms is None:
                self._finish(task, "failed", error)

    def _grant_places(self) -> None:
        """Hold a place for each submitter that is next, as far as there are places.

        The wait queue needs no guard here: only the loop's thread changes it.
        """
        while not self._closing and (waiter := self._blocked.first()) is not None:
            free = 0 if self._queue.live else self.max_concurrent - self._running
            if self._queue.live + self._held >= (self._policy.max_depth or 0) + free:
                return
            self._blocked.popleft()
            self._held += 1
            waiter.settle(GRANTED)
            # From now on it waits for the loop only, not for the pool.
            self._self_waits.discard(waiter.future)

    def _turn_away_blocked(self) -> None:
        """End the wait of each blocked submitter with an error of its own."""
        for waiter in self._blocked:
            if not waiter.future.done():
                waiter.future.set_exception(self._closed_error())

    # Looking.

    def _is_inside(self) -> bool:
        """Tell whether a closure of this pool runs right here (not a child task of one).

        One on a thread, that comes here through `from_thread`, does.
        """
        frame: Any = current_frame_var.get(None)
        if frame is None:
            return False
        if type(frame) is ClosureFrame:
            return frame.pool_task._pool is self and frame.runs_here(
                works_for(asyncio.current_task())
            )
        task = frame.task  # a scope inside a closure has a frame of its own
        return (
            type(task) is ClosureTask
            and task.pool_task._pool is self
            and task.aio is works_for(asyncio.current_task())
        )

    def _total(self) -> int:
        """Count every task ever submitted, those already forgotten included."""
        return self._running + self._queue.live + sum(self._memory.counts.values())

    def _known(self) -> Iterator[PoolTask]:
        yield from self._memory.ended
        yield from self._active()
        yield from self._queue

    def _active(self) -> list[PoolTask]:
        held = [worker.task for worker in self._workers]
        return [task for task in held if task is not None and task._finished_ms is None]

    def _attributes(self, task: PoolTask) -> dict[str, Any]:
        return {"harn.pool.id": self.id, "harn.pool.name": self.name, "harn.pool.task": task.id}

    def _closed_error(self) -> Exception:
        if self._gone and not self._closing:
            return PoolNotFound(f"pool not found: {self.id}")
        return PoolClosed(f"pool {self.name!r} is closed and takes no more work")

    def _elsewhere(self) -> Exception:
        return HarnError(
            f"pool {self.name!r} lives on its runtime's event loop, and this is another thread; "
            "there: from_thread(pool.submit, fn), from_thread(task.wait)"
        )

    def _check_here(self) -> None:
        if self._gone and not self._closing:
            raise PoolNotFound(f"pool not found: {self.id}")

    # Closing.

    def _cancel_all(self) -> None:
        if self._cancelling:
            return
        self._cancelling = True
        self._empty_queue("cancelled", None)
        for task in self._active():
            self._cancel(task)

    def _empty_queue(self, status: TaskStatus, stale: str | None) -> None:
        """End what is queued, in memory only: a journal keeps it for the next opener."""
        journal, self._journal = self._journal, None
        while (task := self._queue.pop()) is not None:
            if self._order is not None:
                self._order.discard(task)
            if stale is not None:
                task._own().reason = (None, None, stale)
            self._finish(task, status, stale and f"the pool was dropped: {stale}")
        self._journal = journal

    async def _shut(self) -> None:
        """End workers, threads and journal, then free the name."""
        try:
            while self._workers:
                await asyncio.wait([worker.aio for worker in self._workers])
                await asyncio.sleep(0)
            if self._runner is not None:
                await self._runner.aclose()
            if self._journal is not None:
                await self._journal.aclose()
        finally:
            self._gone = True
            if self._on_closed is not None:
                self._on_closed(self)

    def _abandon(self) -> None:
        """Drop everything as a dying process would; running closures go on, detached."""
        self._gone = self._cancelling = self._refusing = True
        self._turn_away_blocked()
        if self._journal is not None:
            self._journal.abandon()
            self._journal = None
        self._empty_queue("failed", "never_started")
        for worker in self._workers:
            self.runtime.own(worker.aio)
