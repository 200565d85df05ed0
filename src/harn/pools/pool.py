"""A pool: one budget of slots, shared by everyone who submits.

This file is the door: `submit` checks what it is given, asks the backpressure policy, and queues or
starts the task (or rejects it, refuses it, lets its submitter wait). What happens behind the door,
from the slot to the end, is in `slots.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from contextvars import copy_context
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from harn.checks import LARGEST, whole_number
from harn.clock import resolve
from harn.context import Task, current_frame_var
from harn.errors import DeadlockError, HarnError, PoolFull
from harn.pools.audit import Submitted, note_drop
from harn.pools.backpressure import Decision, Evict, Park, Refuse, RejectNew, decide
from harn.pools.caused import caused_var
from harn.pools.ended_tasks import binding, fingerprint
from harn.pools.options import check_labels, exact
from harn.pools.self_deadlock import began_waiting, ended_waiting
from harn.pools.slots import Slots
from harn.pools.snapshots import PoolSnapshot
from harn.pools.task import PoolTask
from harn.pools.task_ids import iso_text
from harn.sync import Waiter
from harn.tasks import closure_of
from harn.telemetry.html import html_fields
from harn.telemetry.spans import instant_span, tracing

logger = logging.getLogger("harn.pools")


class Pool(Slots):
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

    __slots__ = ()

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
        fn: Callable[..., Any],
        /,
        *args: Any,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask:
        """Submit a call of *fn* with *args*; return its task, running if a slot was free.

        Arguments that do not fit *fn* are a `TypeError` here. With `block_submitter` this waits
        for a place, first come, first served; in a pipeline pool it returns when the task is
        safe on the disk. Labels are kept on the task; the fair queue's field is one of them.
        Cancelling means it was not submitted: it leaves no task and no hole in the line.
        """
        call = closure_of(fn, args)
        task = self._try_submit(call, priority, key, idempotency_key, labels)
        if task is None:
            task = await self._submit_in_turn(call, priority, key, idempotency_key, labels)
        if self._journal is not None:
            await self._journal.acknowledge(task)
        if (caused := caused_var.get()) is not None:
            caused.note(task)
        return task

    def submit_nowait(
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask:
        """Submit a call without ever waiting: `PoolFull` where `submit` would park.

        In a pipeline pool the task is on its way to the disk when this returns; `wait()` on it
        tells when its outcome is safe.
        """
        task = self._try_submit(closure_of(fn, args), priority, key, idempotency_key, labels)
        if task is None:
            queued = self._queue.live
            raise PoolFull(
                f"pool {self.name!r} is full ({queued} queued); wait, or raise max_depth"
            )
        if (caused := caused_var.get()) is not None:
            caused.note(task)
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
            total=self._total(),
            blocked_submitters=self._blocked_count,
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
        if not self.runtime.on_loop_thread():
            raise self._elsewhere()
        if self._is_inside():
            raise DeadlockError(f"a task of pool {self.name!r} closes its own pool")
        self._closing = self._refusing = True
        self._turn_away_blocked()
        if cancel:
            self._cancel_all()
        while self._running or self._queue.live:
            await self._until_drained()
        if self._shutting is None:
            self._shutting = self.runtime.loop.create_task(
                self._shut(), context=self._worker_context
            )
        await asyncio.wait((self._shutting,))
        self._shutting.result()

    async def _until_drained(self) -> None:
        if self._drained is None:
            self._drained = self.runtime.loop.create_future()
        waiter: asyncio.Future[None] = self.runtime.loop.create_future()
        self._drained.add_done_callback(lambda _: resolve(waiter))
        me = began_waiting(self, waiter)
        try:
            await waiter
        finally:
            ended_waiting(me, self, waiter)

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

    def _repr_html_(self) -> str:
        try:
            return self.snapshot(tasks=False)._repr_html_()
        except HarnError:  # looked at from where it does not live
            return html_fields(f"pool {self.name}", {"slots": self.max_concurrent})

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
        if get_ident() != self.runtime._thread_id:  # saves a call
            raise self._elsewhere()
        if self._refusing:
            raise self._closed_error()
        if type(priority) is not int or (priority and abs(priority) > LARGEST):
            whole_number("priority", priority, least=-LARGEST, most=LARGEST)
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
        now = self._now()
        by = ambient.workflow_id or ambient.agent_session_id or ambient.worker_id or "user"
        submitted = Submitted(self._names, seq, now, priority, key, idempotency_key, by)
        task = PoolTask(self, submitted, fn, priority, key, copy_context())
        if labels or idempotency_key is not None or submitter.values or tracing():
            self._equip(task, labels, submitter, idempotency_key)
        self._audit(submitted)
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
            ahead=self._blocked_count,
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
            more.fingerprint = fingerprint(task._body)
            self._memory.bind(binding(submitter.ambient.tenant_id, idempotency_key), task)
        if tracing():
            more.span = instant_span(f"pool.submit {self.name}", self._attributes(task))

    def _reject(
        self, victim: PoolTask, decision: Evict | RejectNew, replacement: PoolTask | None
    ) -> None:
        depth = self._queue.live
        if replacement is not None:
            self._leave_queue(victim)
        self._memory.unbind(victim)  # it never ran, so its key binds nothing
        victim._own().reason = (decision.reason, decision.policy, None)
        self._finish(victim, "rejected")
        note_drop(self._log, victim, replacement, decision, depth, self._policy.max_depth)

    async def _submit_in_turn(
        self,
        fn: Callable[[], Any],
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        labels: dict[str, Any],
    ) -> PoolTask:
        """Wait for a place, then submit into it.

        The place is held for this submitter until it has resumed. A submitter that is cancelled
        or stopped, also between the two, leaves the place to the next one.
        """
        waiter = Waiter().wait_as("submit", self, self.runtime.loop)
        if self._is_inside():
            self._self_waits.add(waiter.future, "submits into its full queue")
        self._blocked.append(waiter)
        self._blocked_count += 1
        try:
            me = began_waiting(self, waiter.future)
            try:
                await waiter.future
            finally:
                ended_waiting(me, self, waiter.future)
            task = self._try_submit(fn, priority, key, idempotency_key, labels, has_place=True)
        finally:
            self._self_waits.discard(waiter.future)
            self._blocked_count -= 1
            if waiter.withdraw():
                self._held -= 1
            else:
                self._blocked.note_left()
            self._grant_places()
        assert task is not None
        return task

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
                task.idempotency_key,
            )
        return task

    def _withdraw(self, task: PoolTask) -> bool:
        """Undo a submit that nobody was told of. A closure that has begun is cancelled."""
        if task._finished_ms is not None or task._more.shared:
            return False
        worker = task._worker
        if worker is not None and worker.is_running(task):
            self._cancel(task)
            return False
        if task.status == "queued":
            self._leave_queue(task)
        else:
            self._running = self._self_waits.running = self._running - 1
        task._finished_ms = task._submitted.at  # its worker, if it has one, passes it over
        task._end = "cancelled"
        self._memory.unbind(task)
        task._wake()
        self._settled()
        return True


def _by_seq(task: PoolTask) -> int:
    return task._submitted.seq
