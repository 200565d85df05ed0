"""A submitted task: its handle, and the record the pool keeps of it (they are one object).

Everything that can wait until somebody asks for it does: the id, the times as text, the future
of whoever waits. A million queued tasks are ordinary, so a task is a handful of slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from harn.context import Frame, Task
from harn.errors import PoolTaskCancelled, PoolTaskFailed, PoolTaskRejected
from harn.exact_json import from_exact_json
from harn.pools.audit import Submitted
from harn.pools.self_deadlock import began_waiting, ended_waiting
from harn.pools.snapshots import TaskSnapshot, TaskStatus
from harn.pools.task_ids import iso_text


class ClosureTask(Task):
    """A running closure as the runtime sees it; its id is made when somebody asks."""

    __slots__ = ("pool_task",)

    def __init__(self, pool_task: PoolTask, parent: Task, aio: asyncio.Task[Any]) -> None:
        pool = pool_task._pool
        super().__init__(pool.runtime, "", "pool task", parent, group_id=pool.id)
        self.pool_task = pool_task
        self.values = pool_task._more.values or {}
        self.cancel_requested = pool_task._stopping
        self.aio = aio

    @property
    def id(self) -> str:
        """The pool task's id."""
        return self.pool_task.id

    @id.setter
    def id(self, value: str) -> None:
        pass


class ClosureFrame(msgspec.Struct, eq=False):
    """What a running closure has for a `Frame`; its task is made when somebody asks.

    Most closures never do, and this is made for every one of them: it has a frame's three
    attributes and is no subclass, because a struct costs a third of that.
    """

    pool_task: PoolTask
    _outer: Frame
    _worker: Any
    nursery: Any = None
    cleanups: Any = None
    _task: Any = None

    @property
    def task(self) -> ClosureTask:
        """The closure as the runtime sees it."""
        task: ClosureTask | None = self._task
        if task is None:
            task = self._task = ClosureTask(self.pool_task, self._outer.task, self._worker.aio)
            if self._worker.begun is self.pool_task:
                task.runtime.tasks.add(task)
        return task

    def runs_here(self, aio: asyncio.Task[Any] | None) -> bool:
        """Tell whether *aio* is the closure itself, not a child that inherited this frame."""
        return self._worker.begun is self.pool_task and self._worker.aio is aio

    def end(self) -> None:
        """Note that the closure has ended."""
        if self._task is not None:
            self._task.runtime.tasks.discard(self._task)


@dataclass(slots=True, eq=False)
class More:
    """What only some tasks have. Ten fields that most leave empty would cost each of them."""

    labels: dict[str, str] | None = None
    values: Any = None
    binding: Any = None
    fingerprint: int | None = None
    conflicts: int = 0
    shared: bool = False
    """Somebody else has been given this task for its idempotency key."""
    span: Any = None
    call: Any = None
    ticket: int = 0
    reason: tuple[str | None, str | None, str | None] | None = None
    """Why it was rejected, the policy that did it, why it is stale."""


NO_MORE = More()
"""Shared by all tasks with nothing special about them; never changed."""


class PoolTask(msgspec.Struct, eq=False, weakref=True):
    """A task in a pool. `await task` gives its result.

    Awaiting raises `PoolTaskFailed` (its cause is the original exception), `PoolTaskRejected` or
    `PoolTaskCancelled` otherwise; `wait()` returns the final snapshot whatever it is. Cancelling
    the one who waits leaves the task alone.

    >>> import harn
    >>> async def main() -> int:
    ...     async with await harn.pool_create(name="sums") as pool:
    ...         task = await pool.submit(lambda: 6 * 7)
    ...         return await task
    >>> harn.run(main)
    42
    """

    _pool: Any
    _submitted: Submitted
    _body: Any
    """The closure; once that has ended, what it returned or why it failed."""
    priority: int
    partition: str | None
    _place: Any
    """The contextvars of its submit while it is queued, its worker while it has one."""
    next: Any = None
    _started_ms: int | None = None
    _finished_ms: int | None = None
    _end: TaskStatus | None = None
    """Its last status, once it has reached it."""
    _waiters: Any = None
    _stopping: bool = False
    _more: More = NO_MORE

    @property
    def _worker(self) -> Any:
        """The worker that has it, if one has."""
        return self._place if self._started_ms is not None else None

    def _own(self) -> More:
        """Return what is special about this task, to be changed."""
        if self._more is NO_MORE:
            self._more = More()
        return self._more

    @property
    def status(self) -> TaskStatus:
        """How far it has come."""
        return self._end or ("queued" if self._started_ms is None else "running")

    @property
    def id(self) -> str:
        """The task's id, `<pool id>_task_<uuid>`; ids sort by time of submit."""
        return self._submitted.task_id

    @property
    def pool(self) -> str:
        """The pool's name."""
        return str(self._pool.name)

    @property
    def pool_id(self) -> str:
        """The pool's id."""
        return str(self._pool.id)

    @property
    def key(self) -> str | None:
        """The key given to the submit."""
        return self._submitted.key

    @property
    def labels(self) -> dict[str, str]:
        """The labels given to the submit."""
        return dict(self._more.labels) if self._more.labels else {}

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key given to the submit."""
        return self._submitted.idempotency_key

    @property
    def conflicts(self) -> int:
        """How often the idempotency key came back with another function or other arguments."""
        return self._more.conflicts

    @property
    def submitted_at(self) -> str:
        """When it was submitted."""
        return iso_text(self._submitted.at)

    @property
    def submitted_by(self) -> str:
        """Who submitted it: a workflow, agent session or worker, or `"user"`."""
        return self._submitted.by

    @property
    def result(self) -> Any:
        """What the closure returned; None unless it has completed."""
        if self.status != "completed":
            return None
        value = self._body
        return value.value() if type(value) is Reloaded else value

    @property
    def error(self) -> str | None:
        """Why it failed or was rejected, as text."""
        if self.status == "rejected":
            return self.rejection_reason
        if self.status != "failed":
            return None
        why = self._body
        return describe(why) if isinstance(why, BaseException) else why

    @property
    def rejection_reason(self) -> str | None:
        """Why it was rejected."""
        return self._more.reason[0] if self._more.reason else None

    @property
    def rejection_policy(self) -> str | None:
        """The policy that rejected it."""
        return self._more.reason[1] if self._more.reason else None

    def done(self) -> bool:
        """Tell whether the task has reached its last status."""
        return self._finished_ms is not None

    def snapshot(self) -> TaskSnapshot:
        """Return the task as it stands."""
        more, outcome, status = self._more, self._body, self._end or self.status
        seen = TaskSnapshot(
            self._submitted,
            self._started_ms,
            self._finished_ms,
            status,
            more.labels and dict(more.labels),
            outcome if status == "completed" else None,
        )
        reloaded = type(outcome) is Reloaded
        if status != "failed" and more.reason is None and not reloaded:
            return seen
        rejection, policy, stale = more.reason or (None, None, None)
        return msgspec.structs.replace(
            seen,
            result=self.result,
            error=self.error,
            rejection_reason=rejection,
            rejection_policy=policy,
            stale_reason=stale,
            result_omitted=reloaded and outcome.omitted,
        )

    async def wait(self) -> TaskSnapshot:
        """Wait until the task has reached its last status and return that snapshot.

        In a pipeline pool that is when its outcome is safe on the disk. Called by a task of the
        same pool when every slot is held by such waits, it raises `DeadlockError`. Cancelling
        leaves the task alone.
        """
        if self._finished_ms is None:
            await self._until_finished()
        journal = self._pool._journal
        if journal is not None:
            await journal.synced(self._more.ticket)
        return self.snapshot()

    async def _until_finished(self) -> None:
        pool = self._pool
        loop = asyncio.get_running_loop()
        if loop is not pool.runtime._loop:
            raise pool._elsewhere()
        waiter: asyncio.Future[None] = loop.create_future()
        if pool._is_inside():
            pool._self_waits.add(waiter, "waits for one of its tasks")
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None
        try:
            me = began_waiting(self, waiter)
            try:
                await waiter
            finally:
                ended_waiting(me, self, waiter)
        finally:
            pool._self_waits.discard(waiter)
            if self._waiters is not None:
                self._waiters.pop(waiter, None)

    def cancel(self) -> bool:
        """Ask the task to end as `cancelled`; false when it has ended already.

        A queued task never runs. A running closure is interrupted at its await; on a thread
        `is_cancelled()` turns true and its end is awaited. May be called from any thread.
        """
        if self._finished_ms is not None:
            return False
        runtime = self._pool.runtime
        if runtime.on_loop_thread():
            self._pool._cancel(self)
        else:
            runtime.loop.call_soon_threadsafe(self._cancel_from_afar)
        return True

    def _cancel_from_afar(self) -> None:
        if self._finished_ms is None:
            self._pool._cancel(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value().__await__()

    async def _value(self) -> Any:
        if self._finished_ms is None:
            await self._until_finished()
        if (journal := self._pool._journal) is not None:
            await journal.synced(self._more.ticket)
        if self.status == "completed":
            return self.result
        if self.status == "rejected":
            reason, policy, _ = self._more.reason or (None, None, None)
            raise PoolTaskRejected(f"pool task {self.id} was rejected: {reason} ({policy})")
        if self.status == "cancelled":
            raise PoolTaskCancelled(f"pool task {self.id} was cancelled")
        failed = PoolTaskFailed(f"pool task {self.id} failed: {self.error}")
        cause = self._body
        raise failed from (cause if isinstance(cause, BaseException) else None)

    def _wake(self) -> None:
        """Let those who wait look again. They count as free from this moment on."""
        waiters, self._waiters = self._waiters, None
        if waiters:
            for waiter in waiters:
                self._pool._self_waits.discard(waiter)
                if not waiter.done():
                    waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<PoolTask {self.id} {self.status}>"


class Reloaded:
    """A result that came out of a journal: JSON to be read on demand, or a text about it."""

    __slots__ = ("omitted", "raw", "text")

    def __init__(self, raw: msgspec.Raw | msgspec.UnsetType, text: str | None) -> None:
        self.raw = raw
        self.text = text
        self.omitted = text is not None

    def value(self) -> Any:
        """Return the value, read again each time: nobody can change the recorded one."""
        if self.omitted or not isinstance(self.raw, msgspec.Raw):
            return self.text
        return from_exact_json(bytes(self.raw))


def describe(error: BaseException) -> str:
    """Return `Type: message`, also for an exception whose `__str__` raises."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:
        return f"{name}: (its message cannot be shown)"
    return f"{name}: {message}" if message else name
