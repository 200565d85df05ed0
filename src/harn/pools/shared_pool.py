"""`SharedPool`: a tenant or org pool, one budget for every process that opens it.

It has the surface of any pool. A submit becomes a job of the pool's queue in the store
(`shared_records.py`), and the store decides what runs where (`shared_pool_slots.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any

from harn.context import current_frame_var
from harn.errors import HarnError, InvalidOption, PoolFull
from harn.pools.backpressure import Decision, Park, Refuse, decide, full
from harn.pools.caused_tasks import caused_var
from harn.pools.closure_frame import is_inside
from harn.pools.idempotency_keys import binding, fingerprint
from harn.pools.options import PoolOptions, exact, new_pool_id
from harn.pools.persistence import durable_call_of
from harn.pools.pool import Pool
from harn.pools.self_deadlock import began_waiting, ended_waiting
from harn.pools.shared_follow import Follower
from harn.pools.shared_pool_slots import SharedPoolSlots
from harn.pools.shared_records import SharedSubmitted, settings_of
from harn.pools.shared_submits import TaskSubmit
from harn.pools.submit_many import Call, check_count, closures_of, refuse_key
from harn.pools.task import PoolTask
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.queue import shared_pools
from harn.tasks import closure_of
from harn.telemetry.spans import instant_span, tracing

UNPLACED = ("fenced", "refuse", "known")
"""Verdicts on a submit that gets no place of its own."""


class SharedPool(Pool):
    """A pool of scope `"tenant"` or `"org"`, shared through the store."""

    __slots__ = ("_follower",)

    max_concurrent: int
    _slots: SharedPoolSlots
    _follower: Follower

    def _make_slots(self, runtime: Runtime, options: PoolOptions, id: str) -> SharedPoolSlots:
        return SharedPoolSlots(runtime, options, id)

    async def open(self) -> None:
        """Open the pool in the store. Cancelling leaves it closed."""
        slots = self._slots
        wanted = settings_of(slots.options)
        store = slots.runtime.service(Store)
        opened = await store.run(lambda: shared_pools.open_pool(slots.queue_name, wanted))
        _check_same(opened.settings, wanted)
        self._created_ms = opened.settings.created_at_ms
        slots.on_settings = self._adopt
        self._follower = slots.follower = Follower(slots, opened)
        await slots.process.join(slots.queue_name, slots.member)
        try:
            await self._follower.load()
        except BaseException:
            await slots.process.leave(slots.queue_name)
            raise
        self._follower.begin()

    def _adopt(self, settings: shared_pools.PoolSettings) -> None:
        self.max_concurrent = settings.max_concurrent

    async def submit(  # type: ignore[override]  # the types are those of `Pool.submit`
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask:
        """Submit a call of *fn* with *args*; return its task when the store has it.

        A `@durable` call runs in any process that has the pool open with `run_here=True`, any
        other closure in this one. With `block_submitter` this waits for a place, first come,
        first served among all processes. Cancelling means it was not submitted.
        """
        task = self._new_task(closure_of(fn, args), priority, key, idempotency_key, labels)
        found = await self._send([task])
        _cause(found)
        return found[0]

    def submit_nowait(  # type: ignore[override]  # the types are those of `Pool.submit_nowait`
        self,
        fn: Callable[..., Any],
        /,
        *args: Any,
        priority: int = 0,
        key: str | None = None,
        idempotency_key: str | None = None,
        **labels: str | None,
    ) -> PoolTask:
        """Submit a call without waiting: `PoolFull` where `submit` would wait for a place.

        It decides by what this process knows of the pool, which is at most a second old. The task
        is on its way to the store when this returns; if the store finds the pool full, the task
        waits there for its place, or is rejected where `submit` would raise.
        """
        call = closure_of(fn, args)
        task = self._new_task(call, priority, key, idempotency_key, labels)
        if idempotency_key is not None:
            known = self._slots.keys.bound(self._binding(idempotency_key))
            if known is not None:
                self._compare_calls(known, task)
                return known
        self._check_room()
        self._slots.unplaced[task.id] = task
        self._slots.work.add(self._submit_of([task], at_once=True))
        _cause([task])
        return task

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
        """Submit all of *calls* or none, in order, in one transaction; return their tasks.

        In a full pool with `block_submitter` they wait as a whole, in their turn among the
        submits of all processes. Cancelling undoes it, and cancels those that have begun.
        """
        refuse_key(idempotency_key)
        tasks = [
            self._new_task(call, priority, key, None, dict(labels)) for call in closures_of(calls)
        ]
        if tasks:
            check_count(self._slots, len(tasks))
            await self._send(tasks)
            _cause(tasks)
        return tasks

    # How a submit becomes a task.

    def _new_task(
        self,
        call: Callable[[], Any],
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        labels: dict[str, Any],
    ) -> PoolTask:
        slots = self._slots
        labels = self._admission.check(priority, key, None, labels)
        if idempotency_key is not None:
            exact("idempotency_key", idempotency_key)
        submitter = (current_frame_var.get(None) or slots.runtime.frame).task
        submitted = SharedSubmitted(
            slots.names,
            0,
            slots.now(),
            priority,
            key,
            idempotency_key,
            submitter.ambient.submitted_by,
            slots.runtime.ids.new(f"{self.id}_task"),
        )
        task = PoolTask(slots, submitted, call, priority, key, copy_context())
        extras = task._own_extras()
        extras.values = submitter.values or None
        extras.call = durable = durable_call_of(call)
        extras.function = None if durable is None else durable.function.name
        if idempotency_key is not None:
            extras.fingerprint = fingerprint(call)
        if labels:
            self._admission.label(task, labels)
        if tracing():
            name = f"pool.submit {self.name}"
            extras.span = instant_span(name, slots.attributes(task))
        return task

    def _tenant(self) -> str | None:
        frame = current_frame_var.get(None) or self._slots.runtime.frame
        return frame.task.ambient.tenant_id

    def _binding(self, idempotency_key: str) -> Any:
        return binding(self._tenant(), idempotency_key)

    def _submit_of(self, tasks: list[PoolTask], *, at_once: bool = False) -> TaskSubmit:
        key = tasks[0]._submitted.idempotency_key
        bound = None if key is None else self._binding(key)
        return TaskSubmit(self, tasks, self._tenant(), bound, at_once=at_once)

    async def _send(self, tasks: list[PoolTask]) -> list[PoolTask]:
        """Send new tasks to the store and wait until they are queued; return them.

        A task that the idempotency key is bound to is returned instead of a new one.
        """
        slots = self._slots
        slots.sending.update(tasks)
        try:
            while True:  # again if that was undone, with this process's lease or the key's
                if slots.state != "open":
                    raise slots.closed_error()
                item = self._submit_of(tasks)
                slots.unplaced.update({task.id: task for task in tasks})
                try:
                    verdicts = await slots.work.ask(item)
                except asyncio.CancelledError:  # which has cancelled what was asked, too
                    item.is_given_up = item.has_begun
                    raise
                except HarnError:
                    if not all(task._extras.ticket > 0 for task in tasks):
                        raise
                    verdicts = []  # the answer was lost, but the tasks were read from the store
                finally:
                    self._forget_unplaced(item)
                if verdicts and verdicts[0].verdict in UNPLACED:
                    if found := await self._instead(verdicts[0], tasks):
                        return found
                    continue
                if slots.blocked.count:
                    for task in tasks:
                        await self._until_admitted(task, tasks)
                if tasks[0]._extras.ticket > 0:
                    return tasks
        finally:
            slots.sending.difference_update(tasks)

    def _forget_unplaced(self, item: TaskSubmit) -> None:
        """Forget the tasks of *item*, unless its caller gave up and it may still be carried out."""
        if not item.is_given_up:
            for task in item.tasks:
                self._slots.unplaced.pop(task.id, None)

    async def _instead(
        self, verdict: shared_pools.SubmitResult, tasks: list[PoolTask]
    ) -> list[PoolTask]:
        """Return what *tasks* that got no place led to: nothing if they are to be sent again."""
        if verdict.verdict == "refuse":
            raise self._refusal(verdict.totals)
        known = await self._known(verdict.task) if verdict.verdict == "known" else None
        if known is None:
            return []
        self._compare_calls(known, tasks[0])
        return [known]

    async def _known(self, id: int) -> PoolTask | None:
        """Return the task that a key is bound to, once it is queued; None if it was undone."""
        slots = self._slots
        if id not in slots.mirror.by_id:
            await self._follower.read(id)
        task = slots.mirror.by_id.get(id)
        if task is not None:
            task._own_extras().shared = True
            await self._until_admitted(task, [])
        return task if id in slots.mirror.by_id else None

    async def _until_admitted(self, task: PoolTask, undo: list[PoolTask]) -> None:
        """Wait until *task* has a place; on any way out of the wait, *undo* the submits."""
        slots = self._slots
        id = task._extras.ticket
        while slots.mirror.is_blocked(id):
            waiter: asyncio.Future[None] = slots.runtime.loop.create_future()
            try:
                if is_inside(slots):
                    slots.self_waits.add(waiter, "submits into its full queue", slots.running)
                slots.blocked.callers.setdefault(id, []).append(waiter)
                me = began_waiting(self, waiter)
                try:
                    await waiter
                finally:
                    ended_waiting(me, self, waiter)
            except BaseException:
                self._undo(undo)
                raise
            finally:
                slots.self_waits.discard(waiter)

    def _undo(self, tasks: Sequence[PoolTask]) -> None:
        """Undo submits whose caller got an error: for the caller they did not happen."""
        for task in tasks:
            self._slots.cancels.undo_own(task)

    async def _stand_for(self, task: PoolTask, verdict: shared_pools.SubmitResult) -> None:
        """Let *task*, whose key was bound already, end as the task does that the key leads to."""
        known = await self._known(verdict.task)
        if known is not None:
            self._compare_calls(known, task)
            await known.wait()
            task._finish_like(known)

    def _compare_calls(self, known: PoolTask, came: PoolTask) -> None:
        """Count a conflict if *came* has the key of *known* and is another call."""
        self._slots.keys.compare_call(known, lambda: came._extras.fingerprint or 0)

    def _check_room(self) -> None:
        """Raise if the pool is full, as far as this process knows."""
        slots = self._slots
        met = shared_pools.Totals(slots.queued, slots.running, slots.blocked.count)
        met = met.after_starts(slots.max_concurrent)
        decision = self._decide(met)
        if isinstance(decision, Park):
            raise PoolFull(f"pool {self.name!r} {full(met.queued)}")
        if isinstance(decision, Refuse):
            raise self._refusal(met)

    def _decide(self, met: shared_pools.Totals) -> Decision:
        slots = self._slots
        return decide(
            slots.options.backpressure,
            queued=met.queued,
            running=met.running,
            slots=slots.max_concurrent,
            ahead=met.blocked,
        )

    def _refusal(self, met: shared_pools.Totals | None) -> Exception:
        decision = self._decide(met or shared_pools.Totals(0, 0, 0))
        if isinstance(decision, Refuse):
            return decision.error(f"pool {self.name!r} {decision.why}")
        # Decided with the cap that is known here; the store has perhaps another one by now.
        return HarnError(f"pool {self.name!r} was full when it got the submit; submit it again")


async def open_shared(options: PoolOptions, runtime: Runtime) -> SharedPool:
    """Open a tenant or org pool in the runtime's store. Cancelling leaves nothing open."""
    pool = SharedPool(runtime, options, new_pool_id(options, runtime))
    await pool.open()
    return pool


def _check_same(stored: shared_pools.PoolSettings, wanted: shared_pools.PoolSettings) -> None:
    for option in ("queue", "backpressure", "retention"):
        ours, theirs = getattr(wanted, option), getattr(stored, option)
        if ours != theirs:
            raise InvalidOption(
                option,
                ours,
                f"what pool {stored.name!r} of {stored.scope} {stored.scope_id!r} was made with "
                f"in this store: {theirs}",
            )


def _cause(tasks: list[PoolTask]) -> None:
    if (caused := caused_var.get()) is not None:
        for task in tasks:
            caused.note(task)
