"""`Pool`: what a caller sees of a pool.

A submit goes through `admission.py`, which makes a task of it, to `slots.py`, which runs the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, overload

from harn.errors import DeadlockError, HarnError, PoolFull
from harn.pools.admission import Admission
from harn.pools.backpressure import full
from harn.pools.caused_tasks import caused_var
from harn.pools.closure_frame import is_inside
from harn.pools.options import PoolOptions
from harn.pools.slots import Slots
from harn.pools.snapshots import PoolSnapshot
from harn.pools.submit_many import Call, SubmitMany, closures_of, refuse_key
from harn.pools.task import PoolTask
from harn.pools.task_ids import iso_text
from harn.runtime import Runtime
from harn.tasks import closure_of
from harn.telemetry.html import html_fields

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Pool:
    """A named pool; made by `pool_create`, found by `pool_get`.

    As a context manager it is closed at the end of the block; an exception cancels its work.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     async with await harn.pool_create(name="review", max_concurrent=2) as pool:
    ...         tasks = [await pool.submit(pow, n, 2) for n in range(4)]
    ...         return [await task for task in tasks]
    >>> harn.run(main)
    [0, 1, 4, 9]
    """

    __slots__ = (
        "__weakref__",
        "_admission",
        "_created_ms",
        "_on_closed",
        "_shutting",
        "_slots",
        "id",
        "max_concurrent",
        "name",
        "scope",
        "scope_id",
    )

    def __init__(self, runtime: Runtime, options: PoolOptions, id: str) -> None:
        self.id: str = id
        self.name: str = options.name
        self.max_concurrent: int = options.max_concurrent
        self.scope = options.scope
        self.scope_id: str | None = options.scope_id
        self._slots = self._make_slots(runtime, options, id)
        self._admission = Admission(self._slots)
        self._created_ms = runtime.clock.now_ms()
        self._on_closed: Callable[[Pool], None] | None = None
        """Called once, when the pool has closed and its name is free."""
        self._shutting: asyncio.Task[None] | None = None

    def _make_slots(self, runtime: Runtime, options: PoolOptions, id: str) -> Slots:
        return Slots(runtime, options, id)

    @property
    def created_at(self) -> str:
        """When the pool was created."""
        return iso_text(self._created_ms)

    @overload
    async def submit(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask[T]: ...
    @overload
    async def submit(
        self,
        fn: Callable[[*Ts], T],
        /,
        *args: *Ts,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask[T]: ...
    async def submit(
        self,
        fn: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask[Any]:
        """Submit a call of *fn* with *args*; return its task, running if a slot was free.

        Arguments that do not fit *fn* are a `TypeError` here. With `block_submitter` this waits
        for a place, first come, first served. In a pipeline pool it returns when the task is
        safe on the disk. Labels are kept on the task; the fair queue's field is one of them.
        Cancelling means it was not submitted: no task is left, and no place is lost.
        """
        call = closure_of(fn, args)
        task = self._admission.admit(call, priority, key, idempotency_key, labels)
        if task is None:
            task = await self._admission.admit_in_turn(call, priority, key, idempotency_key, labels)
        if (journal := self._slots.journal) is not None:
            await journal.acknowledge(task)
        if (caused := caused_var.get()) is not None:
            caused.note(task)
        return task

    @overload
    def submit_nowait(
        self,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask[T]: ...
    @overload
    def submit_nowait(
        self,
        fn: Callable[[*Ts], T],
        /,
        *args: *Ts,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask[T]: ...
    def submit_nowait(
        self,
        fn: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask[Any]:
        """Submit a call without waiting: `PoolFull` where `submit` would wait for a place.

        In a pipeline pool the task is on its way to the disk when this returns; its `wait()`
        returns when its outcome is safe.
        """
        call = closure_of(fn, args)
        task = self._admission.admit(call, priority, key, idempotency_key, labels)
        if task is None:
            raise PoolFull(f"pool {self.name!r} {full(self._slots.queue.live)}")
        if (caused := caused_var.get()) is not None:
            caused.note(task)
        return task

    @overload
    async def submit_many(
        self,
        calls: Iterable[Callable[[], Awaitable[T]]],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: None = None,
        **labels: str | None,
    ) -> list[PoolTask[T]]: ...
    @overload
    async def submit_many(
        self,
        calls: Iterable[Callable[[], T]],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: None = None,
        **labels: str | None,
    ) -> list[PoolTask[T]]: ...
    @overload
    async def submit_many(
        self,
        calls: Iterable[tuple[Callable[[*Ts], Awaitable[T]], *Ts]],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: None = None,
        **labels: str | None,
    ) -> list[PoolTask[T]]: ...
    @overload
    async def submit_many(
        self,
        calls: Iterable[tuple[Callable[[*Ts], T], *Ts]],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: None = None,
        **labels: str | None,
    ) -> list[PoolTask[T]]: ...
    @overload
    async def submit_many(
        self,
        calls: Iterable[Call],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: None = None,
        **labels: str | None,
    ) -> list[PoolTask[Any]]: ...
    async def submit_many(
        self,
        calls: Iterable[Call],
        /,
        *,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: None = None,
        **labels: str | None,
    ) -> list[PoolTask[Any]]:
        """Submit all of *calls* or none, in order; return their tasks.

        A call is a function, or a tuple of a function and its arguments. The options are those of
        `submit` and hold for every call; an *idempotency_key* names one task and is refused. With
        `block_submitter` this waits until there are places for all calls, first come, first
        served. In a pipeline pool they share one line of the journal and one sync. Cancelling
        means that none was submitted.

        >>> import harn
        >>> async def main() -> list[int]:
        ...     async with await harn.pool_create(max_concurrent=2) as pool:
        ...         tasks = await pool.submit_many((pow, n, 2) for n in range(4))
        ...         return [await task for task in tasks]
        >>> harn.run(main)
        [0, 1, 4, 9]
        """
        refuse_key(idempotency_key)
        batch = SubmitMany(closures_of(calls), priority, key, labels)
        tasks = await batch.admit(self._admission)
        if (journal := self._slots.journal) is not None:
            await journal.acknowledge_all(tasks)
        if (caused := caused_var.get()) is not None:
            for task in tasks:
                caused.note(task)
        return tasks

    def size(self) -> int:
        """Return how many tasks are running or queued."""
        slots = self._found()
        return slots.running + slots.queued

    def snapshot(self, tasks: bool = True) -> PoolSnapshot:
        """Return the pool as it stands; *tasks* false leaves the list of tasks empty."""
        slots = self._found()
        ended, options = slots.ended, slots.options
        ended.forget_old(slots.now())
        return PoolSnapshot(
            id=self.id,
            name=self.name,
            max_concurrent=self.max_concurrent,
            created_at=self.created_at,
            active=slots.running,
            queued=slots.queued,
            **ended.counts,
            total=slots.running + slots.queued + sum(ended.counts.values()),
            blocked_submitters=slots.blocked.count,
            tasks=[task.snapshot() for task in slots.tasks()] if tasks else [],
            queue=options.queue,
            backpressure=options.backpressure,
            scope=options.scope,
            scope_id=options.scope_id,
            stale_after_ms=options.stale_after_ms,
            durable=slots.journal is not None or options.is_shared,
            # The latest opener of a shared pool sets its cap for all handles.
            config=options.as_dict() | {"max_concurrent": self.max_concurrent},
        )

    def _found(self) -> Slots:
        """Return the slots; `PoolNotFound` if the pool was dropped."""
        if self._slots.state == "dropped":
            raise self._slots.closed_error()
        return self._slots

    async def close(self, cancel: bool = False) -> None:
        """Take no more submits, finish what is queued and running, and free the name.

        Blocked submitters get `PoolClosed`. With *cancel* running work is cancelled and awaited,
        and the queue too; a pipeline pool leaves its queue in the journal for the next opener.
        Cancelling `close` leaves the pool closing: it takes nothing new and continues its work,
        and another `close` waits for that.
        """
        slots = self._slots
        if slots.state in ("closed", "dropped"):
            return
        if not slots.runtime.on_loop_thread():
            raise slots.wrong_thread_error()
        if is_inside(slots):
            raise DeadlockError(f"a task of pool {self.name!r} closes its own pool")
        slots.state = "closing"
        slots.blocked.turn_away(slots.closed_error)
        if cancel:
            slots.cancel_all()
        await slots.drain()
        if self._shutting is None:
            self._shutting = slots.runtime.loop.create_task(
                self._shut(), context=slots.worker_context
            )
        await asyncio.wait((self._shutting,))
        self._shutting.result()

    async def _shut(self) -> None:
        """End what the pool owns, then free its name."""
        try:
            await self._slots.shut()
        finally:
            self._slots.state = "closed"
            if self._on_closed is not None:
                self._on_closed(self)

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
        return repr(self._slots)

    def _repr_html_(self) -> str:
        try:
            return self.snapshot(tasks=False)._repr_html_()
        except HarnError:  # the pool was dropped
            return html_fields(f"pool {self.name}", {"slots": self.max_concurrent})
