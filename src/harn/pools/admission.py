"""How a submit becomes a task: checked, recognised by its key, admitted, rejected or refused.

`admit` never waits. It asks the backpressure policy what to do with the submit. A submitter that
has to wait for a place in a full queue stands in line (`blocked_submitters.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from threading import get_ident
from typing import Any

from harn.context import Task, current_frame_var
from harn.option_checks import LARGEST, whole_number
from harn.pools.audit import Submitted, note_drop
from harn.pools.backpressure import Decision, Evict, Park, Refuse, RejectNew, decide
from harn.pools.closure_frame import is_inside
from harn.pools.eviction import EvictingQueue
from harn.pools.idempotency_keys import binding, fingerprint
from harn.pools.options import check_labels, exact
from harn.pools.slots import Slots
from harn.pools.task import PoolTask
from harn.telemetry.spans import instant_span, tracing


class Admission:
    """The door of one pool. It numbers the tasks that it lets in."""

    __slots__ = ("_bounded", "_field", "_policy", "_slots", "last_seq")

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._policy = slots.options.backpressure
        self._bounded = self._policy.kind != "unbounded"
        self._field = slots.options.field
        self.last_seq: int = 0
        """The number of the newest task."""

    def admit(
        self,
        fn: Callable[[], Any],
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        labels: dict[str, Any],
        has_place: bool = False,
    ) -> PoolTask | None:
        """Admit, reject or refuse one submit; None if its submitter has to wait for a place."""
        slots = self._slots
        runtime = slots.runtime
        if get_ident() != runtime._thread_id or slots.state != "open":
            self._check_open()
        if labels or key is not None or priority or type(priority) is not int:
            labels = self._check_options(priority, key, labels)
        submitter = (current_frame_var.get(None) or runtime.frame).task
        ambient = submitter.ambient
        if idempotency_key is not None:
            known = self._known(ambient.tenant_id, idempotency_key, fn)
            if known is not None:
                return known
        decision: Decision | None = None
        if self._bounded and not has_place:
            decision = self.decide()
            if isinstance(decision, Park):
                return None
        self.last_seq = seq = self.last_seq + 1
        now = slots.now()
        by = ambient.workflow_id or ambient.agent_session_id or ambient.worker_id or "user"
        submitted = Submitted(slots.names, seq, now, priority, key, idempotency_key, by)
        task = PoolTask(slots, submitted, fn, priority, key, copy_context())
        if labels or idempotency_key is not None or submitter.values or tracing():
            self._add_extras(task, labels, submitter, idempotency_key)
        slots.audit(submitted)
        if decision is not None and not self._make_room(task, decision):
            return task
        if slots.journal is not None:
            slots.journal.submitted(task)
        if slots.running < slots.max_concurrent and not slots.queue.live:
            slots.start(task, now)
        else:
            slots.queue.push(task)
        return task

    def check(
        self, priority: int, key: str | None, idempotency_key: None, labels: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the labels; raise the error that `admit` would raise, and admit nothing."""
        self._check_open()
        return self._check_options(priority, key, labels)

    def _check_open(self) -> None:
        """Raise the error of a submit from another thread, or to a pool that is not open."""
        if get_ident() != self._slots.runtime._thread_id:
            raise self._slots.wrong_thread_error()
        if self._slots.state != "open":
            raise self._slots.closed_error()

    async def admit_in_turn(
        self,
        fn: Callable[[], Any],
        priority: int,
        key: str | None,
        idempotency_key: str | None,
        labels: dict[str, Any],
    ) -> PoolTask:
        """Wait for a place, then admit the submit into it.

        The place is held for this submitter until it has resumed. A submitter that is cancelled
        or stopped, also between the two, leaves the place to the next one.
        """
        async with self.places(1):
            task = self.admit(fn, priority, key, idempotency_key, labels, has_place=True)
        assert task is not None
        return task

    @asynccontextmanager
    async def places(self, count: int) -> AsyncIterator[None]:
        """Wait for *count* places; they are held for this submitter until the block has ended."""
        slots = self._slots
        waiter = slots.blocked.join(slots, count)
        try:
            if is_inside(slots):
                slots.self_waits.add(waiter.future, "submits into its full queue", slots.running)
            await slots.blocked.wait(waiter)
            yield
        finally:
            slots.blocked.leave(waiter)
            slots.hold_places()

    def _check_options(
        self, priority: int, key: str | None, labels: dict[str, Any]
    ) -> dict[str, Any]:
        whole_number("priority", priority, least=-LARGEST, most=LARGEST)
        if key is not None:
            exact("key", key)
        return check_labels(labels, self._field)

    def _known(
        self, tenant_id: str | None, idempotency_key: str, fn: Callable[[], Any]
    ) -> PoolTask | None:
        """Return the task that an earlier submit with this key made."""
        exact("idempotency_key", idempotency_key)
        keys = self._slots.keys
        self._slots.ended.forget_old(self._slots.now())
        task = keys.bound(binding(tenant_id, idempotency_key))
        if task is None:
            return None
        if self._slots.held:
            self._slots.journal.take_up(task)  # type: ignore[union-attr]
        task._own_extras().shared = True
        keys.compare_call(task, lambda: fingerprint(fn))
        return task

    def decide(self, count: int = 1) -> Decision:
        """Ask the policy about *count* more calls; raise the error of a policy that refuses."""
        slots = self._slots
        decision = decide(
            self._policy,
            queued=slots.queue.live,
            running=slots.running,
            slots=slots.max_concurrent,
            ahead=slots.blocked.count,
            count=count,
        )
        if isinstance(decision, Refuse):
            raise decision.error(f"pool {slots.names.name!r} {decision.why}")
        return decision

    def _add_extras(
        self,
        task: PoolTask,
        labels: dict[str, str],
        submitter: Task,
        idempotency_key: str | None,
    ) -> None:
        """Give *task* what only some tasks have."""
        extras = task._own_extras()
        extras.values = submitter.values or None
        if labels:
            self.label(task, labels)
        if idempotency_key is not None:
            extras.fingerprint = fingerprint(task._body)
            bound = binding(submitter.ambient.tenant_id, idempotency_key)
            self._slots.keys.bind(bound, task)
        if tracing():
            name = f"pool.submit {self._slots.names.name}"
            extras.span = instant_span(name, self._slots.attributes(task))

    def label(self, task: PoolTask, labels: dict[str, str]) -> None:
        """Keep *labels* on *task*; one of them may be the fair queue's partition."""
        task._own_extras().labels = labels
        if self._field is not None:
            task.partition = labels.get(self._field, task.key)

    def _make_room(self, task: PoolTask, decision: Decision) -> bool:
        """Reject *task*, or evict another for it; false if *task* itself is rejected."""
        if isinstance(decision, RejectNew):
            self._reject(task, decision, None)
            return False
        if isinstance(decision, Evict):
            queue = self._slots.queue
            assert isinstance(queue, EvictingQueue)
            self._reject(queue.victim(task.partition), decision, task)
        return True

    def _reject(
        self, victim: PoolTask, decision: Evict | RejectNew, replacement: PoolTask | None
    ) -> None:
        slots = self._slots
        depth = slots.queue.live
        if replacement is not None:
            slots.queue.discard(victim)
        slots.keys.unbind(victim)  # it never ran, so its key binds nothing
        victim._explain(decision.reason, decision.policy)
        slots.finish(victim, "rejected")
        log = slots.runtime.event_log
        note_drop(log, victim, replacement, decision, depth, self._policy.max_depth)
