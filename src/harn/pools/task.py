"""A submitted task: the caller's handle and the pool's record of it, in one object.

A pool may have a million queued tasks, so a task has few fields. Its id, its times as text and the
futures of its waiters are made when they are first needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextvars import Context
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from harn.durable_calls import DurableCall, DurableFunction
from harn.durable_types import types_of
from harn.error_text import error_text
from harn.errors import PoolError, PoolTaskCancelled, PoolTaskFailed, PoolTaskRejected
from harn.exact_json import from_exact_json
from harn.pools.audit import Submitted
from harn.pools.closure_frame import is_inside
from harn.pools.self_deadlock import began_waiting, ended_waiting
from harn.pools.snapshots import TaskSnapshot, TaskStatus
from harn.pools.task_ids import iso_text
from harn.tasks import DoneCallbacks

if TYPE_CHECKING:
    # Only type checkers need the default, which Python itself has from 3.13 on.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)


class Extras(msgspec.Struct, eq=False):
    """Fields that only some tasks need, kept apart to save memory in all others."""

    labels: dict[str, str] | None = None
    values: Any = None
    binding: Any = None
    fingerprint: int | None = None
    conflicts: int = 0
    shared: bool = False
    """Whether another submit with the same idempotency key has returned this task."""
    span: Any = None
    call: Any = None
    """The `DurableCall` that the closure makes, if it is one."""
    function: str | None = None
    """In a shared pool: the name of the durable function, also where this process has no call."""
    steps: Any = None
    """The steps of a durable call that an earlier process recorded."""
    callbacks: DoneCallbacks | None = None
    ticket: int = 0
    reason: tuple[str | None, str | None, str | None] | None = None
    """Why it was rejected, the policy that rejected it, why it is stale."""


class _NoExtras(Extras, frozen=True, eq=False):  # type: ignore[misc]  # msgspec allows it
    """Extras that cannot be changed, so that many tasks may share them."""


NO_EXTRAS: Extras = _NoExtras()
"""The extras of all tasks that have none of their own."""


class PoolTask(msgspec.Struct, Generic[T_co], eq=False, weakref=True):
    """A task in a pool. `await task` returns its result, of the type that the function returns.

    Awaiting raises `PoolTaskFailed` (its cause is the original exception), `PoolTaskRejected` or
    `PoolTaskCancelled` otherwise; `wait()` returns the final snapshot, whatever its status.
    Cancelling a waiter does not cancel the task. `asyncio.wait`, `gather`, `wait_for` and
    `as_completed` take it.

    >>> import harn
    >>> async def main() -> int:
    ...     async with await harn.pool_create(name="sums") as pool:
    ...         task = await pool.submit(lambda: 6 * 7)
    ...         return await task
    >>> harn.run(main)
    42
    """

    _slots: Any
    """The `Slots` of its pool; typed Any because `inspect` cannot resolve a deferred import."""
    _submitted: Submitted
    _body: Any
    """The closure; after its end the value that it returned, or the error."""
    priority: int
    partition: str | None
    _place: Any
    """The contextvars context of its submit while it is queued; its worker while it runs."""
    next: Any = None
    """The next task in the queue's linked list."""
    _started_ms: int | None = None
    _finished_ms: int | None = None
    _end: TaskStatus | None = None
    """The final status, once it is reached."""
    _waiters: Any = None
    _stopping: bool = False
    _extras: Extras = NO_EXTRAS

    def __dir__(self) -> Iterable[str]:
        # `next` and `partition` are for the queues of the pool, whose tasks may be any object.
        return [name for name in super().__dir__() if name not in ("next", "partition")]

    @property
    def _worker(self) -> Any:
        """The worker that runs the task, if it runs."""
        return self._place if self._started_ms is not None else None

    def _own_extras(self) -> Extras:
        """Return extras that belong to this task alone and may be changed."""
        if self._extras is NO_EXTRAS:
            self._extras = Extras()
        return self._extras

    # Its life, as the pool decides it. Only these methods change how a task stands, and the three
    # that start and end every task in `Slots`; a worker is its `_place` while it runs.

    def _start(self, at: int) -> None:
        """Note that the task runs since *at*."""
        self._started_ms = at

    def _queue_again(self, context: Context | None = None) -> None:
        """Note that the task is queued, whatever it was; *context*, if given, is for its run."""
        self._started_ms = None
        if context is not None:
            self._place = context

    def _load_call(self, call: DurableCall) -> None:
        """Make the stored *call* what the task runs."""
        self._own_extras().call = call
        self._body = call.closure()

    def _stop(self, stopping: bool = True) -> None:
        """Note whether the task is to end as `cancelled`."""
        self._stopping = stopping

    def _explain(
        self, rejection: str | None = None, policy: str | None = None, stale: str | None = None
    ) -> None:
        """Note why the task is rejected, and by which policy, or why it is stale."""
        self._own_extras().reason = (rejection, policy, stale)

    def _finish(self, status: TaskStatus, body: Any, at: int) -> None:
        """Note that the task ended at *at*; *body* is its value, or why it failed."""
        self._end = status
        self._body = body
        self._finished_ms = at
        self._place = None

    def _correct_end(self, at: int) -> None:
        """Note that the task ended at *at*, by the store's clock."""
        self._finished_ms = at

    def _undo(self) -> None:
        """End the task as if it had never been submitted, and wake its waiters."""
        self._stopping = True  # its worker, if it has one, skips it
        self._end, self._finished_ms = "cancelled", self._submitted.at
        self._wake()

    def _finish_like(self, known: PoolTask) -> None:
        """End the task as *known*, which has the same idempotency key, and wake its waiters."""
        self._started_ms, self._extras = known._started_ms, known._extras
        self._end, self._body, self._finished_ms = known._end, known._body, known._finished_ms
        self._wake()

    @property
    def status(self) -> TaskStatus:
        """The status now."""
        return self._end or ("queued" if self._started_ms is None else "running")

    @property
    def id(self) -> str:
        """The task's id, `<pool id>_task_<uuid>`; ids sort by time of submit."""
        return self._submitted.task_id

    @property
    def pool(self) -> str:
        """The pool's name."""
        return self._submitted.names.name

    @property
    def pool_id(self) -> str:
        """The pool's id."""
        return self._submitted.names.id

    @property
    def key(self) -> str | None:
        """The key given to the submit."""
        return self._submitted.key

    @property
    def labels(self) -> dict[str, str]:
        """The labels given to the submit."""
        return dict(self._extras.labels) if self._extras.labels else {}

    @property
    def idempotency_key(self) -> str | None:
        """The idempotency key given to the submit."""
        return self._submitted.idempotency_key

    @property
    def conflicts(self) -> int:
        """How often a submit had this idempotency key with another function or other arguments."""
        return self._extras.conflicts

    @property
    def submitted_at(self) -> str:
        """When it was submitted."""
        return iso_text(self._submitted.at)

    @property
    def submitted_by(self) -> str:
        """The submitter: a workflow, agent session or worker, or `"user"`."""
        return self._submitted.by

    @property
    def result(self) -> T_co | None:
        """What the closure returned; None unless it has completed."""
        if self.status != "completed":
            return None
        value: Any = self._body
        return value.value() if type(value) is Reloaded else value  # type: ignore[no-any-return]

    @property
    def error(self) -> str | None:
        """Why it failed or was rejected, as text."""
        if self.status == "rejected":
            return self.rejection_reason
        if self.status != "failed":
            return None
        why = self._body
        return error_text(why) if isinstance(why, BaseException) else why

    @property
    def rejection_reason(self) -> str | None:
        """Why it was rejected."""
        return self._extras.reason[0] if self._extras.reason else None

    @property
    def rejection_policy(self) -> str | None:
        """The policy that rejected it."""
        return self._extras.reason[1] if self._extras.reason else None

    def done(self) -> bool:
        """Tell whether the task has reached its final status."""
        return self._finished_ms is not None

    def cancelled(self) -> bool:
        """Tell whether the task has ended because it was cancelled."""
        return self._end == "cancelled"

    def exception(self) -> BaseException | None:
        """Return what awaiting a task that has ended raises; None if it completed.

        Raises `PoolTaskCancelled` if it was cancelled, and `asyncio.InvalidStateError` if it has
        not ended.
        """
        if self._finished_ms is None:
            raise asyncio.InvalidStateError(f"pool task {self.id} has not ended; await it")
        if self._end == "cancelled":
            raise self._failure()
        return None if self._end == "completed" else self._failure()

    def add_done_callback(
        self, fn: Callable[[PoolTask[T_co]], object], /, *, context: Context | None = None
    ) -> None:
        """Call *fn* with this task soon after it has ended, as asyncio's futures do."""
        loop = self._own_loop()
        callbacks = self._own_extras().callbacks or DoneCallbacks()
        self._extras.callbacks = callbacks
        callbacks.add(fn, context)
        if self._finished_ms is not None:
            callbacks.run(loop, self)
        elif self._waiters is None:
            self._waiters = {}  # so that the end of the task looks for waiters and callbacks

    def remove_done_callback(self, fn: Callable[[PoolTask[T_co]], object], /) -> int:
        """Remove *fn* from the callbacks; return how often it was there."""
        callbacks = self._extras.callbacks
        return 0 if callbacks is None else callbacks.remove(fn)

    def snapshot(self) -> TaskSnapshot[T_co]:
        """Return the present state of the task."""
        extras, outcome, status = self._extras, self._body, self._end or self.status
        seen = TaskSnapshot(
            self._submitted,
            self._started_ms,
            self._finished_ms,
            status,
            extras.labels and dict(extras.labels),
            outcome if status == "completed" else None,
        )
        reloaded = type(outcome) is Reloaded
        if status != "failed" and extras.reason is None and not reloaded:
            return seen
        rejection, policy, stale = extras.reason or (None, None, None)
        return msgspec.structs.replace(
            seen,
            result=self.result,
            error=self.error,
            rejection_reason=rejection,
            rejection_policy=policy,
            stale_reason=stale,
            result_omitted=reloaded and outcome.omitted,
        )

    async def wait(self) -> TaskSnapshot[T_co]:
        """Wait until the task has reached its final status and return that snapshot.

        In a pipeline pool this also waits until the outcome is on the disk. If all slots of the
        pool are held by tasks that wait like this, a task of the pool that calls it gets a
        `DeadlockError`. Cancelling the wait does not cancel the task.
        """
        if self._finished_ms is None:
            await self._until_finished()
        if (journal := self._slots.journal) is not None:
            await journal.synced(self._extras.ticket)
        return self.snapshot()

    async def _until_finished(self) -> None:
        slots = self._slots
        waiter: asyncio.Future[None] = self._own_loop().create_future()
        if is_inside(slots):
            slots.self_waits.add(waiter, "waits for one of its tasks", slots.running)
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
            if self._waiters is not None:  # the task has not ended: `_wake` did not do this
                self._waiters.pop(waiter, None)
                slots.self_waits.discard(waiter)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        home: asyncio.AbstractEventLoop = self._slots.runtime._loop
        if loop is not home:
            raise self._slots.wrong_thread_error()
        return loop

    def cancel(self) -> bool:
        """Ask the task to end as `cancelled`; false if it has ended already.

        A queued task never runs. A running coroutine is cancelled at its await. For a closure on a
        thread `is_cancelled()` becomes true, and the task ends when the closure returns. May be
        called from any thread.
        """
        if self._finished_ms is not None:
            return False
        runtime = self._slots.runtime
        if runtime.on_loop_thread():
            self._slots.cancel(self)
        else:
            runtime.loop.call_soon_threadsafe(self._cancel_if_unfinished)
        return True

    def _cancel_if_unfinished(self) -> None:
        if self._finished_ms is None:
            self._slots.cancel(self)

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._value().__await__()

    async def _value(self) -> T_co:
        if self._finished_ms is None:
            await self._until_finished()
        if (journal := self._slots.journal) is not None:
            await journal.synced(self._extras.ticket)
        if self._end != "completed":
            raise self._failure()
        value: Any = self._body
        return value.value() if type(value) is Reloaded else value  # type: ignore[no-any-return]

    def _failure(self) -> PoolError:
        """Return the error of a task that has ended without completing."""
        if self.status == "rejected":
            reason, policy, _ = self._extras.reason or (None, None, None)
            return PoolTaskRejected(f"pool task {self.id} was rejected: {reason} ({policy})")
        if self.status == "cancelled":
            return PoolTaskCancelled(f"pool task {self.id} was cancelled")
        failed = PoolTaskFailed(f"pool task {self.id} failed: {self.error}")
        failed.__cause__ = self._body if isinstance(self._body, BaseException) else None
        return failed

    def _wake(self) -> None:
        """Wake the waiters, which no longer count as waiting for the pool."""
        waiters, self._waiters = self._waiters, None
        if self._extras.callbacks:
            self._extras.callbacks.run(self._slots.runtime.loop, self)
        if waiters:
            for waiter in waiters:
                self._slots.self_waits.discard(waiter)
                if not waiter.done():
                    waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<PoolTask {self.id} {self.status}>"


class Reloaded:
    """A result that was read from a journal: JSON, decoded when it is read, or a text about it."""

    __slots__ = ("function", "omitted", "raw", "text")

    def __init__(
        self,
        raw: msgspec.Raw | msgspec.UnsetType,
        text: str | None,
        function: DurableFunction | None = None,
    ) -> None:
        self.function: DurableFunction | None = function
        """The function that returned it, if it is known; it may say that this is a model."""
        self.raw: msgspec.Raw | msgspec.UnsetType = raw
        self.text: str | None = text
        self.omitted: bool = text is not None

    def value(self) -> Any:
        """Return the value, decoded each time, so that no caller can change the recorded one."""
        if self.omitted or not isinstance(self.raw, msgspec.Raw):
            return self.text
        value = from_exact_json(bytes(self.raw))
        if self.function is None:
            return value
        try:
            return types_of(self.function.fn).read_result(value)
        except ValueError:  # the model has changed since; its JSON is what there is
            return value
