"""A submitted task: its handle, and the record the pool keeps of it (they are one object).

Everything that can wait until somebody asks for it does: the id, the times as text, the future
of whoever waits. A million queued tasks are ordinary, so a task is a handful of slots.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Generator, Hashable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from harn.clock import iso
from harn.errors import PoolTaskCancelled, PoolTaskFailed, PoolTaskRejected
from harn.pools.records import from_json
from harn.pools.snapshots import TaskSnapshot, TaskStatus
from harn.runtime import Task

if TYPE_CHECKING:
    from harn.pools.pool import Pool

iso_text = functools.lru_cache(maxsize=4096)(iso)
"""Many tasks share a millisecond; its text is made once."""


def task_id(prefix: str, salt: int, ms: int, seq: int) -> str:
    """Return the id of task *seq*: a UUIDv7 made of its time, its number and its pool's salt.

    A function of what the task knows anyway, so that nothing is made until somebody asks, and
    the same program gives the same ids.
    """
    text = f"{ms:012x}7{seq >> 30 & 0xFFF:03x}{1 << 63 | (seq & 0x3FFF_FFFF) << 32 | salt:016x}"
    return f"{prefix}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class ClosureTask(Task):
    """The running closure as the runtime sees it; its id is made when somebody asks."""

    __slots__ = ("pool_task",)

    def __init__(self, pool_task: PoolTask, parent: Task, aio: asyncio.Task[Any]) -> None:
        pool = pool_task._pool
        super().__init__(pool.runtime, "", "pool task", parent, group_id=pool.id)
        self.pool_task = pool_task
        self.values = pool_task._values
        self.aio = aio

    @property
    def id(self) -> str:
        """The pool task's id."""
        return self.pool_task.id

    @id.setter
    def id(self, value: str) -> None:
        pass


class PoolTask:
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

    __slots__ = (
        "__weakref__",
        "_binding",
        "_call",
        "_conflicts",
        "_context",
        "_error",
        "_fingerprint",
        "_finished_ms",
        "_fn",
        "_harn",
        "_idempotency_key",
        "_labels",
        "_outcome",
        "_pool",
        "_reason",
        "_seq",
        "_shared",
        "_span",
        "_started_ms",
        "_stopping",
        "_submitted_by",
        "_submitted_ms",
        "_ticket",
        "_values",
        "_waiters",
        "_worker",
        "key",
        "next",
        "partition",
        "priority",
        "status",
        "waiting",
    )

    def __init__(
        self,
        pool: Pool,
        seq: int,
        fn: Callable[[], Any] | None,
        priority: int,
        key: str | None,
        labels: dict[str, str] | None,
        submitted_ms: int,
        submitted_by: str,
    ) -> None:
        self._pool = pool
        self._seq = seq
        self._fn = fn
        self.priority = priority
        self.key = key
        self._labels = labels
        self._submitted_ms = submitted_ms
        self._submitted_by = submitted_by
        self.status: TaskStatus = "queued"
        self.partition = key
        self.waiting = False
        self.next: PoolTask | None = None
        self._context: contextvars.Context | None = None
        self._values: Mapping[str, Any] = {}
        self._idempotency_key: str | None = None
        self._started_ms: int | None = None
        self._finished_ms: int | None = None
        self._outcome: Any = None
        self._error: BaseException | str | None = None
        self._reason: tuple[str | None, str | None, str | None] | None = None
        self._waiters: dict[asyncio.Future[None], None] | None = None
        self._worker: Any = None
        self._harn: ClosureTask | None = None
        self._span: Any = None
        self._ticket = 0
        self._binding: Hashable = None
        self._call: Any = None
        self._fingerprint: int | None = None
        self._conflicts = 0
        self._shared = False
        self._stopping = False

    @property
    def id(self) -> str:
        """The task's id, `<pool id>_task_<uuid>`; ids sort by time of submit."""
        pool = self._pool
        return task_id(pool._task_prefix, pool._salt, self._submitted_ms, self._seq)

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self._pool.name

    @property
    def pool_id(self) -> str:
        """The pool's id."""
        return self._pool.id

    @property
    def labels(self) -> dict[str, str]:
        """The labels given to the submit."""
        return dict(self._labels) if self._labels else {}

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key given to the submit."""
        return self._idempotency_key

    @property
    def conflicts(self) -> int:
        """How often the idempotency key came back with another function or other arguments."""
        return self._conflicts

    @property
    def submitted_at(self) -> str:
        """When it was submitted."""
        return iso_text(self._submitted_ms)

    @property
    def submitted_by(self) -> str:
        """Who submitted it: a workflow, agent session or worker, or `"user"`."""
        return self._submitted_by

    @property
    def result(self) -> Any:
        """What the closure returned; None unless it has completed."""
        value = self._outcome
        return value.value() if type(value) is Reloaded else value

    @property
    def error(self) -> str | None:
        """Why it failed or was rejected, as text."""
        if self._error is None:
            return self._reason[0] if self._reason and self.status == "rejected" else None
        return self._error if isinstance(self._error, str) else describe(self._error)

    @property
    def rejection_reason(self) -> str | None:
        """Why it was rejected."""
        return self._reason[0] if self._reason else None

    @property
    def rejection_policy(self) -> str | None:
        """The policy that rejected it."""
        return self._reason[1] if self._reason else None

    def done(self) -> bool:
        """Tell whether the task has reached its last status."""
        return self._finished_ms is not None

    def snapshot(self) -> TaskSnapshot:
        """Return the task as it stands."""
        pool = self._pool
        started, finished, reason = self._started_ms, self._finished_ms, self._reason
        outcome = self._outcome
        return TaskSnapshot(
            id=task_id(pool._task_prefix, pool._salt, self._submitted_ms, self._seq),
            pool=pool.name,
            pool_id=pool.id,
            status=self.status,
            priority=self.priority,
            key=self.key,
            labels=dict(self._labels) if self._labels else {},
            idempotency_key=self._idempotency_key,
            submitted_at=iso_text(self._submitted_ms),
            submitted_by=self._submitted_by,
            started_at=None if started is None else iso_text(started),
            finished_at=None if finished is None else iso_text(finished),
            result=outcome.value() if type(outcome) is Reloaded else outcome,
            error=self.error,
            rejection_reason=None if reason is None else reason[0],
            rejection_policy=None if reason is None else reason[1],
            stale_reason=None if reason is None else reason[2],
            result_omitted=type(outcome) is Reloaded and outcome.omitted,
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
            await journal.synced(self._ticket)
        return self.snapshot()

    async def _until_finished(self) -> None:
        pool = self._pool
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if pool._is_inside():
            pool._stuck.add(waiter, "waits for one of its tasks")
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            pool._stuck.discard(waiter)
            if self._waiters is not None:
                self._waiters.pop(waiter, None)

    def cancel(self) -> bool:
        """Ask the task to end as `cancelled`; false when it has ended already.

        A queued task never runs. A running closure is interrupted at its await; on a thread
        `is_cancelled()` turns true and its end is awaited.
        """
        if self._finished_ms is not None:
            return False
        self._pool._cancel(self)
        return True

    def __await__(self) -> Generator[Any, None, Any]:
        return self._value().__await__()

    async def _value(self) -> Any:
        await self.wait()
        if self.status == "completed":
            return self.result
        if self.status == "rejected":
            reason, policy, _ = self._reason or (None, None, None)
            raise PoolTaskRejected(f"pool task {self.id} was rejected: {reason} ({policy})")
        if self.status == "cancelled":
            raise PoolTaskCancelled(f"pool task {self.id} was cancelled")
        failed = PoolTaskFailed(f"pool task {self.id} failed: {self.error}")
        raise failed from (self._error if isinstance(self._error, BaseException) else None)

    def _wake(self) -> None:
        """Let those who wait look again. They count as free from this moment on."""
        waiters, self._waiters = self._waiters, None
        if waiters:
            for waiter in waiters:
                self._pool._stuck.discard(waiter)
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
        return from_json(bytes(self.raw))


def describe(error: BaseException) -> str:
    """Return `Type: message`, also for an exception whose `__str__` raises."""
    name = type(error).__name__
    try:
        message = str(error)
    except BaseException:
        return f"{name}: (its message cannot be shown)"
    return f"{name}: {message}" if message else name
