"""A pool: one budget of slots, shared by everyone who submits.

The life of a task is a few named steps: `_try_submit` admits it (or rejects it, refuses it, or
lets its submitter wait) and queues or starts it, `_start` gives it a slot and a worker, the worker
runs it, `finish` records its end and `next` passes the slot on. Each step is complete
between two awaits, so the counts add up whenever anyone looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterator
from contextvars import Context, copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from harn import topics
from harn.clock import resolve
from harn.errors import DeadlockError, HarnError, PoolClosed, PoolFull, PoolNotFound
from harn.pools.audit import DEQUEUE_HEADERS, SUBMIT_HEADERS, Dequeued, Submitted, note_drop
from harn.pools.backpressure import Decision, Evict, Park, Refuse, RejectNew, decide
from harn.pools.memory import Memory, binding, fingerprint
from harn.pools.names import Names, iso_text
from harn.pools.options import PoolOptions, check_labels, exact, whole_number
from harn.pools.parking import ParkingLine
from harn.pools.snapshots import PoolSnapshot, TaskStatus
from harn.pools.stuck import StuckWaits
from harn.pools.task import ClosureFrame, ClosureTask, PoolTask
from harn.pools.worker import Worker
from harn.runtime import Runtime, Task, current_frame_var
from harn.tasks import Runner, check_callable, runner_for
from harn.telemetry.spans import instant_span, tracing

if TYPE_CHECKING:
    from harn.pools.persistence import Persistence

logger = logging.getLogger("harn.pools")


class Pool:
    """A named pool; made by `pool_create`, found by `pool_get`.

    As a context manager it is closed at the end of the block; an exception cancels its work.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     async with await harn.pool_create(name="review", max_concurrent=2) as pool:
    ...         tasks = [await pool.submit(lambda n=n: n * n) for n in range(4)]
    ...         return [await task for task in tasks]
    >>> harn.run(main)
    [0, 1, 4, 9]
    """

    def __init__(self, runtime: Runtime, options: PoolOptions, id: str) -> None:
        self.runtime = runtime
        self.options = options
        self.id = id
        self.name = options.name
        self.max_concurrent = options.max_concurrent
        self.scope = options.scope
        self.scope_id = options.scope_id
        self.on_closed: Callable[[Pool], None] | None = None
        """Told once, when the pool has closed and its name is free."""
        self._created_ms = runtime.clock.now_ms()
        self.names = Names(id, options.name)
        self._log = runtime.event_log
        self._policy = options.backpressure
        self._bounded = options.backpressure.kind != "unbounded"
        self._field = options.field
        self._queue = options.queue.queue()
        self._order = options.backpressure.order()
        self._memory = Memory(options.retention)
        self._line = ParkingLine()
        self._stuck = StuckWaits(options.name)
        self.workers: set[Worker] = set()
        self.idle: list[Worker] = []
        self.worker_context = Context()
        self.worker_context.run(current_frame_var.set, runtime.frame)
        self.on_loop = options.isolation in ("auto", "task")
        self._runner: Runner | None = None
        self.is_durable = options.scope == "pipeline"
        self._journal: Persistence | None = None
        self._seq = 0
        self._running = 0
        self._refusing = False
        self._closing = False
        self._cancelling = False
        self._gone = False
        self._drained: asyncio.Future[None] | None = None
        self._shutting: asyncio.Task[None] | None = None

    @property
    def created_at(self) -> str:
        """When the pool was created."""
        return iso_text(self._created_ms)

    @property
    def closed(self) -> bool:
        """Whether the pool takes no more work."""
        return self._closing or self._gone

    @property
    def idempotency_conflicts(self) -> int:
        """How often a known idempotency key came with another function or other arguments."""
        return self._memory.conflicts

    async def submit(
        self,
        fn: Callable[[], Any],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask:
        """Submit *fn* and return its task: running if a slot was free, else queued.

        With `block_submitter` this waits for a place, first come, first served; in a pipeline
        pool it returns when the task is safe on the disk. Labels are kept on the task; the fair
        queue's field is one of them. Cancelling means it was not submitted: it leaves no task
        and no hole in the line.
        """
        task = self._try_submit(fn, priority, key, idempotency_key, labels)
        if task is None:
            task = await self._submit_in_turn(fn, priority, key, idempotency_key, labels)
        if self._journal is not None:
            await self._journal.acknowledge(task)
        return task

    def submit_nowait(
        self,
        fn: Callable[[], Any],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask:
        """Submit *fn* without ever waiting: `PoolFull` where `submit` would park.

        In a pipeline pool the task is on its way to the disk when this returns; `wait()` on it
        tells when its outcome is safe.
        """
        task = self._try_submit(fn, priority, key, idempotency_key, labels)
        if task is None:
            queued = self._queue.live
            raise PoolFull(
                f"pool {self.name!r} is full ({queued} queued); wait, or raise max_depth"
            )
        return task

    def size(self) -> int:
        """Return how many tasks are running or queued."""
        self._check_here()
        return self._running + self._queue.live

    def snapshot(self, tasks: bool = True) -> PoolSnapshot:
        """Return the pool as it stands; *tasks* false leaves the list of tasks empty."""
        self._check_here()
        memory, options = self._memory, self.options
        memory.forget_old(self.runtime.clock.now_ms())
        listed = sorted(self._known(), key=_by_seq) if tasks else []
        return PoolSnapshot(
            id=self.id,
            name=self.name,
            max_concurrent=self.max_concurrent,
            created_at=self.created_at,
            active=self._running,
            queued=self._queue.live,
            **memory.counts,
            total=memory.total,
            blocked_submitters=len(self._line),
            tasks=[task.snapshot() for task in listed],
            queue=options.queue,
            backpressure=options.backpressure,
            scope=options.scope,
            scope_id=options.scope_id,
            stale_after_ms=options.stale_after_ms,
            durable=self._journal is not None,
            config=options.as_dict(),
        )

    def find(self, task_id: str) -> PoolTask | None:
        """Return the task with this id, if the pool still remembers it."""
        self._check_here()
        return next((task for task in self._known() if task.id == task_id), None)

    def pending(self) -> list[PoolTask]:
        """Return what has not ended: the queued in order of submit, then the running by id."""
        running = sorted(self._active(), key=lambda task: task.id)
        return sorted(self._queue, key=_by_seq) + running

    async def close(self, cancel: bool = False) -> None:
        """Take no more submits, finish what is queued and running, and free the name.

        Parked submitters get `PoolClosed`. With *cancel* running work is cancelled and awaited,
        and the queue too; a pipeline pool leaves its queue in the journal for the next opener.
        Cancelling `close` leaves the pool closing: it takes nothing new and goes on with its
        work, and another `close` waits for it.
        """
        if self._gone:
            return
        if self._is_inside():
            raise DeadlockError(f"a task of pool {self.name!r} closes its own pool")
        self._closing = self._refusing = True
        self._line.dismiss(self._closed_error)
        if cancel:
            self._cancel_all()
        while self._running or self._queue.live:
            if self._drained is None:
                self._drained = self.runtime.loop.create_future()
            await asyncio.wait((self._drained,))
        if self._shutting is None:
            self._shutting = self.runtime.loop.create_task(
                self._shut(), context=self.worker_context
            )
        await asyncio.wait((self._shutting,))
        self._shutting.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(cancel=kind is not None)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._running} running, {self._queue.live} queued"
        return f"<Pool {self.name!r} {state}>"

    # Submitting.

    def _try_submit(
        self,
        fn: Callable[[], Any],
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        labels: dict[str, Any],
        has_place: bool = False,
    ) -> PoolTask | None:
        """Admit, reject or refuse one submit; None when its submitter has to wait in line."""
        if self._refusing:
            raise self._closed_error()
        if not callable(fn):
            check_callable(fn)
        if type(priority) is not int:
            whole_number("priority", priority)
        if key is not None:
            exact("key", key)
        if labels:
            labels = check_labels(labels, self._field)
        frame = current_frame_var.get(None) or self.runtime.frame
        submitter = frame.task
        ambient = submitter.ambient
        if idempotency_key is not None:
            exact("idempotency_key", idempotency_key)
            recorded = self._recorded(binding(ambient.tenant_id, idempotency_key), fn)
            if recorded is not None:
                return recorded
        decision: Decision | None = None
        if self._bounded and not has_place:
            decision = self._decide()
            if isinstance(decision, Park):
                return None
            if isinstance(decision, Refuse):
                raise decision.error(f"pool {self.name!r} {decision.why}")
        self._seq = seq = self._seq + 1
        now: int = self.runtime.clock.now_ms()
        by = ambient.workflow_id or ambient.agent_session_id or ambient.worker_id or "user"
        task = PoolTask(self, seq, fn, priority, key, key, now, by, copy_context())
        self._memory.total += 1
        if labels or idempotency_key is not None or submitter.values or tracing():
            self._equip(task, labels, submitter, idempotency_key)
        receipt = Submitted(self.names, seq, now, priority, key, idempotency_key, by)
        self._log.record(topics.POOL_AUDIT, "pool_submit", receipt, SUBMIT_HEADERS, now)
        if decision is not None:
            if isinstance(decision, RejectNew):
                self._reject(task, decision, None)
                return task
            if isinstance(decision, Evict):
                assert self._order is not None
                self._reject(self._order.victim(task.partition), decision, task)
        if self._journal is not None:
            self._journal.submitted(task)
        if self._running < self.max_concurrent and not self._queue.live:
            self._start(task, now)
        else:
            self._queue.push(task)
            if self._order is not None:
                self._order.add(task)
        return task

    def _decide(self) -> Decision:
        return decide(
            self._policy,
            queued=self._queue.live,
            running=self._running,
            slots=self.max_concurrent,
            ahead=len(self._line),
        )

    def _equip(
        self,
        task: PoolTask,
        labels: dict[str, str],
        submitter: Task,
        idempotency_key: str | None,
    ) -> None:
        """Give *task* what only some tasks have."""
        more = task._own()
        more.values = submitter.values or None
        if labels:
            more.labels = labels
            if self._field is not None:
                task.partition = labels.get(self._field, task.key)
        if idempotency_key is not None:
            more.idempotency_key = idempotency_key
            more.fingerprint = fingerprint(task._fn)
            self._memory.bind(binding(submitter.ambient.tenant_id, idempotency_key), task)
        if tracing():
            more.span = instant_span(f"pool.submit {self.name}", self._attributes(task))

    def _reject(
        self, victim: PoolTask, decision: Evict | RejectNew, replacement: PoolTask | None
    ) -> None:
        depth = self._queue.live
        self._leave_queue(victim)
        self._memory.unbind(victim)  # it never ran, so its key binds nothing
        victim._own().reason = (decision.reason, decision.policy, None)
        self.finish(victim, "rejected")
        note_drop(self._log, victim, replacement, decision, depth, self._policy.max_depth)

    async def _submit_in_turn(
        self,
        fn: Callable[[], Any],
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        labels: dict[str, Any],
    ) -> PoolTask:
        """Wait in line for a place, then submit into it; it is held for us meanwhile."""
        waiter: asyncio.Future[None] = self.runtime.loop.create_future()
        if self._is_inside():
            self._stuck.add(waiter, "submits into its full queue")
        self._line.join(waiter)
        try:
            await waiter
            task = self._try_submit(fn, priority, key, idempotency_key, labels, has_place=True)
        finally:
            self._stuck.discard(waiter)
            self._line.leave(waiter)
            self._let_in()
        assert task is not None
        return task

    def _let_in(self) -> None:
        """Hold a place for whoever is next in line, as far as there are places."""
        while len(self._line) > self._line.held and not self._closing:
            free = 0 if self._queue.live else self.max_concurrent - self._running
            if self._queue.live + self._line.held >= (self._policy.max_depth or 0) + free:
                return
            waiter = self._line.next()
            assert waiter is not None
            self._stuck.discard(waiter)

    def _recorded(self, bound: Hashable, fn: Callable[[], Any]) -> PoolTask | None:
        memory = self._memory
        memory.forget_old(self.runtime.clock.now_ms())
        task = memory.bound(bound)
        if task is None:
            return None
        more = task._own()
        more.shared = True
        if more.fingerprint is not None and more.fingerprint != fingerprint(fn):
            more.conflicts += 1
            memory.conflicts += 1
            logger.warning(
                "pool %r: idempotency key %r came with another call; it leads to its first task",
                self.name,
                more.idempotency_key,
            )
        return task

    def withdraw(self, task: PoolTask) -> bool:
        """Undo a submit that nobody was told of. A closure that has begun is cancelled."""
        if task._finished_ms is not None or task._more.shared:
            return False
        if task._worker is not None and task._worker.is_running(task):
            self._cancel(task)
            return False
        if task.status == "queued":
            self._leave_queue(task)
        else:
            self._running = self._stuck.running = self._running - 1
        task._finished_ms = task._submitted_ms  # its worker, if it has one, passes it over
        task.status = "cancelled"
        self._memory.unbind(task)
        self._memory.total -= 1
        task._wake()
        self._settled()
        return True

    # Running.

    def _start(self, task: PoolTask, now: int, worker: Worker | None = None) -> None:
        task.status = "running"
        task._started_ms = now
        slot = self._running
        self._running = self._stuck.running = slot + 1
        receipt = Dequeued(self.names, task._seq, task._submitted_ms, now, slot)
        self._log.record(topics.POOL_AUDIT, "pool_dequeue", receipt, DEQUEUE_HEADERS, now)
        if task._more.span is not None:
            name, links = f"pool.dequeue {self.name}", (task._more.span,)
            Context().run(instant_span, name, self._attributes(task), links)
        if worker is None and self.idle:
            worker = self.idle.pop()
        if worker is None:
            self.workers.add(Worker(self, task))
        else:
            worker.task = task
            task._worker = worker

    def finish(self, task: PoolTask, status: TaskStatus, result: Any = None) -> None:
        """Record the end of *task* and wake those who wait for it; a slot it had is free.

        *result* is what it returned, or why it failed.
        """
        if task.status == "running":
            self._running = self._stuck.running = self._running - 1
        task.status = status
        task._outcome = result
        task._finished_ms = now = self.runtime.clock.now_ms()
        task._fn = task._context = task._worker = None
        memory = self._memory
        memory.counts[status] += 1
        memory.ended.append(task)
        if len(memory.ended) > memory.count or now > memory.next_due:
            memory.forget_old(now)
        if self._journal is not None:
            self._journal.ended(task)
        if task._waiters is not None:
            task._wake()

    def next(self, worker: Worker | None = None, now: int | None = None) -> None:
        """Pass a slot that has come free to the task whose turn it is."""
        if self._queue.live and self._running < self.max_concurrent and not self._cancelling:
            task: Any = self._queue.pop()
            if self._order is not None:
                self._order.discard(task)
            self._start(task, self.runtime.clock.now_ms() if now is None else now, worker)
        if self._line.anyone or self._drained is not None or self._stuck.waits:
            self._settled()

    def _settled(self) -> None:
        """Look who can go on now that a task has left its place."""
        self._let_in()
        if self._drained is not None and not self._running and not self._queue.live:
            resolve(self._drained)
            self._drained = None
        self._stuck.check()

    def _leave_queue(self, task: PoolTask) -> None:
        self._queue.discard(task)
        if self._order is not None:
            self._order.discard(task)

    def _cancel(self, task: PoolTask) -> None:
        task._stopping = True
        if task.status == "queued":
            self._leave_queue(task)
            self.finish(task, "cancelled")
            self._settled()
            return
        worker = task._worker
        if worker is not None and worker.begun is task:
            worker.stop()

    def worker_died(self, task: PoolTask, error: BaseException | None) -> None:
        """Take back a task whose worker ended under it: cancelled before it began, or broken."""
        if task._finished_ms is not None:
            return
        if error is None and not self._cancelling and not self._gone:
            self.workers.add(Worker(self, task))
            return
        self.finish(task, "cancelled" if error is None else "failed", error)
        self.next()

    def bind(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Return something async that runs *fn* where the pool's isolation says."""
        if self._runner is None:
            isolation: Any = self.options.isolation
            self._runner = runner_for(self.runtime, isolation, self.max_concurrent)
        return self._runner.bind(fn)

    async def before_start(self, task: PoolTask) -> None:
        """Let the journal know before the closure begins; whatever goes wrong ends the task."""
        assert self._journal is not None
        try:
            await self._journal.starting(task)
        except asyncio.CancelledError:
            if task._finished_ms is None:
                self.finish(task, "cancelled")
        except HarnError as error:
            if task._finished_ms is None:
                self.finish(task, "failed", error)

    # Looking.

    def _is_inside(self) -> bool:
        """Tell whether a closure of this pool runs right here (not a child task of one)."""
        frame: Any = current_frame_var.get(None)
        if frame is None:
            return False
        if type(frame) is ClosureFrame:
            return frame.pool_task._pool is self and frame.runs_here(asyncio.current_task())
        task = frame.task  # a scope inside a closure has a frame of its own
        return (
            type(task) is ClosureTask
            and task.pool_task._pool is self
            and task.aio is asyncio.current_task()
        )

    def _known(self) -> Iterator[PoolTask]:
        yield from self._memory.ended
        yield from self._active()
        yield from self._queue

    def _active(self) -> list[PoolTask]:
        held = [worker.task for worker in self.workers]
        return [task for task in held if task is not None and task._finished_ms is None]

    def _attributes(self, task: PoolTask) -> dict[str, Any]:
        return {"harn.pool.id": self.id, "harn.pool.name": self.name, "harn.pool.task": task.id}

    def _closed_error(self) -> Exception:
        if self._gone and not self._closing:
            return PoolNotFound(f"pool not found: {self.id}")
        return PoolClosed(f"pool {self.name!r} is closed and takes no more work")

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
            self.finish(task, status, stale and f"the pool was dropped: {stale}")
        self._journal = journal

    async def _shut(self) -> None:
        """End workers, threads and journal, then free the name."""
        try:
            while self.workers:
                await asyncio.wait([worker.aio for worker in self.workers])
                await asyncio.sleep(0)
            if self._runner is not None:
                await self._runner.aclose()
            if self._journal is not None:
                await self._journal.aclose()
        finally:
            self._gone = True
            if self.on_closed is not None:
                self.on_closed(self)

    def abandon(self) -> None:
        """Drop everything as a dying process would; running closures go on, detached."""
        self._gone = self._cancelling = self._refusing = True
        self._line.dismiss(self._closed_error)
        if self._journal is not None:
            self._journal.abandon()
            self._journal = None
        self._empty_queue("failed", "never_started")
        for worker in self.workers:
            self.runtime.own(worker.aio)


def _by_seq(task: PoolTask) -> int:
    return task._seq
