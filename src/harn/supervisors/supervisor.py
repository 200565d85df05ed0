"""The supervisor: applies the decisions of `restart_policy.py` and `plan.py`.

Nothing here waits. An event (a child ends, a timer fires, a lease is won or lost, a stop is
requested) is noted on its child. Then `_advance` makes a plan, applies it (ask, cancel, skip,
start) and sets a timer for the next plan. So the supervisor has no task that could be lost, and
its state is complete whenever other code runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.clock import Timer, resolve
from harn.context import Task
from harn.current import current_frame
from harn.duration import Duration, to_seconds
from harn.error_text import error_text, message_of, repr_of
from harn.errors import HarnError
from harn.graceful_stop import parked
from harn.runtime import Runtime
from harn.supervisors.exits import Exits
from harn.supervisors.plan import GRACE, SupervisorPlan, is_due, make_plan, share
from harn.supervisors.records import (
    ENDED,
    ChildContext,
    SupervisorEvent,
    SupervisorState,
    SupervisorStatus,
)
from harn.supervisors.spec import SupervisorSpec
from harn.supervisors.supervised_child import SupervisedChild
from harn.supervisors.supervisor_events import SupervisorEvents
from harn.tasks import Err, Ok, TaskHandle
from harn.telemetry.logs import FAILED_WORK

if TYPE_CHECKING:
    from harn.supervisors.registry import Supervisors

logger: logging.Logger = logging.getLogger("harn.supervisors")

LONGEST_ERROR = 2000
"""The most characters of a child's error in an event."""
LONGEST_OUTPUT = 500
"""The most characters of a child's return value in an event."""
CLAIM_AGAIN = 0.5
"""Seconds after which a lease is claimed again when its claim has failed."""


class Supervisor:
    """Starts, watches, restarts and stops its children. Made by `supervisor_start`.

    It belongs to the runtime, or to the supervised child that started it, and ends with that. A
    child may call `stop` of its own supervisor; it is then cancelled in that call.

    >>> import harn
    >>> async def tick(ctx) -> None:
    ...     while not harn.is_cancelled():
    ...         await harn.sleep("1ms")
    >>> async def main() -> str:
    ...     sup = await harn.supervisor_start(children=[harn.Child("tick", tick)])
    ...     return (await sup.stop("1s")).status
    >>> harn.run(main)
    'stopped'
    """

    def __init__(
        self,
        registry: Supervisors,
        number: int,
        spec: SupervisorSpec,
        parent: SupervisedChild | None,
    ) -> None:
        self.id: str = f"supervisor_{number}"
        self.name: str = spec.name or self.id
        self.strategy = spec.strategy
        self._registry = registry
        self._runtime: Runtime = registry.runtime
        self._spec = spec
        self._parent = parent
        self._task = _task_below(current_frame().task, self.name)
        self._context = contextvars.copy_context()
        self._status: SupervisorStatus = "running"
        self._ending: SupervisorStatus | None = None
        """Its status after all children have ended, if it has to end."""
        self._failure: BaseException | None = None
        self._final: SupervisorState | None = None
        self._forced = False
        self._timer: Timer | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._children = [
            SupervisedChild(self, each, registry.bind(each.task)) for each in spec.children
        ]
        self._events = SupervisorEvents(self._runtime, self.id, registry.noted)
        self._exits = Exits(self._runtime, spec, self._children, self._events)

    # -- for users ---------------------------------------------------------------------------

    def state(self) -> SupervisorState:
        """Return the state of the supervisor and its children; after the end, the final state."""
        if self._final is not None:
            return self._final
        states = tuple(child.state() for child in self._children)
        metrics = self._events.metrics()
        return SupervisorState(self.id, self.name, self._status, self.strategy, metrics, states)

    def events(self) -> list[SupervisorEvent]:
        """Return the latest 10,000 events, oldest first."""
        return self._events.events()

    async def stop(self, timeout: Duration | None = None) -> SupervisorState:
        """Stop every child, from right to left, and return the final state.

        Each is asked first (`is_cancelled()` becomes true in it) and has its share of *timeout*
        (by default `shutdown_ms`) to end by itself; then it is cancelled. A child that does not end
        even then is reported as `abandoned`. This returns a second after *timeout* at the latest.

        A second call waits for the same stop and returns the same state; a shorter *timeout*
        shortens the stop. Cancelling does not undo the stop.
        """
        self._runtime.check_here()
        seconds = self._spec.shutdown if timeout is None else to_seconds(timeout, "timeout")
        self._request_stop(self._now() + seconds)
        return await self.wait()

    async def wait(self) -> SupervisorState:
        """Wait until the supervisor has ended and return its final state.

        It ends when it is stopped, when no child will be started again (`completed`), or when it
        passes a failure to its parent (`escalated`). Cancelling and a graceful stop of the waiter
        leave it running.
        """
        self._runtime.check_here()
        if self._final is None:
            waiter = asyncio.get_running_loop().create_future()
            with parked(waiter):
                await self._ends(waiter)
        return self.state()

    async def _wait_as_child(self) -> None:
        """Wait until it has ended, for the child that returned it.

        A stop of that child does not interrupt this wait: the child stops this supervisor too.
        """
        if self._final is None:
            with parked(_no_interruption):
                await self._ends(asyncio.get_running_loop().create_future())

    async def _ends(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    # -- for the registry, parents and children -----------------------------------------------

    def _begin(self) -> None:
        """Start the children."""
        self._events.note(None, "supervisor_started")
        now = self._now()
        for child in self._children:
            child.at = now
        self._advance()

    def _request_stop(self, by: float) -> None:
        """Stop every child, *by* that time if possible; returns at once.

        *by* is a time of the runtime's monotonic clock.
        """
        if self._final is not None:
            return
        if self._ending is None:
            self._ending, self._status = "stopped", "draining"
            self._events.note(None, "supervisor_stopping")
        self._end_all(by)
        self._advance()

    def _inner_escalated(self, child: SupervisedChild, error: BaseException) -> None:
        """Fail *child*, because a supervisor that it started escalated *error*."""
        if child.handle is not None:
            child.escalated = error
            child.handle.cancel()

    def _child_ended(self, child: SupervisedChild, handle: TaskHandle[Any]) -> None:
        """Note that *child*'s task has ended, and apply the consequences."""
        self._registry.forget(handle._task)
        must_end = child.must_end or self._runtime.closing
        outcome = handle._outcome()
        if child.escalated is not None:
            outcome, child.escalated = Err(child.escalated), None
        elif must_end and handle.status == "cancelled":
            outcome = Ok(None)
        # A child that ended with the `TaskCancelled` of a graceful stop has drained.
        drained = must_end and handle.status == "cancelled" and not child.cancelled
        clean = isinstance(outcome, Ok) and (handle.status == "completed" or drained)
        if isinstance(outcome, Err):
            logger.warning(
                "supervisor %r: child %r failed: %s",
                *(self.name, child.spec.name, error_text(outcome.error, LONGEST_ERROR)),
                exc_info=outcome.error,
                extra=FAILED_WORK,
            )
        child.ended()
        if self._final is not None:
            return
        error = outcome.error if isinstance(outcome, Err) else None
        if isinstance(outcome, Err):
            self._events.counters["failed"] += 1
            child.last_error = error_text(outcome.error, LONGEST_ERROR)
            self._events.note(child, "child_failed", child.last_error)
        elif clean:
            self._events.counters["stopped"] += 1
            child.last_error = None
            if outcome.value is not None:
                self._events.note(child, "child_output", _output(outcome.value))
        self._follow(child, error, must_end)
        self._advance()

    def _follow(self, child: SupervisedChild, error: BaseException | None, must_end: bool) -> None:
        if must_end and (self._ending is not None or self._runtime.closing):
            if error is None:
                message = "forced" if child.cancelled else "drained"
                self._events.note(child, "child_stopped", message)
            child.withdraw_end()
            child.stay_ended("stopped" if error is None else "failed")
        elif must_end:
            self._exits.ended_on_request(child, "clean" if error is None else "failed")
        elif error is not None and self.strategy == "escalate_to_parent":
            self._escalate(child, error)
        elif error is not None:
            self._exits.ended_by_itself(child, "failed")
        else:
            self._events.note(child, "child_stopped", "completed")
            self._exits.ended_by_itself(child, "clean")

    def _escalate(self, child: SupervisedChild, error: BaseException) -> None:
        self._events.counters["escalated"] += 1
        child.stay_ended("failed")
        self._events.note(child, "child_escalated", error_text(error, LONGEST_ERROR))
        self._ending = self._status = "escalated"
        self._failure = HarnError(
            f"supervisor {self.name!r} escalated: its child {child.spec.name!r} failed with "
            f"{error_text(error, LONGEST_ERROR)}"
        )
        self._failure.__cause__ = error
        self._end_all(self._now() + self._spec.shutdown)

    # -- applying the plan -------------------------------------------------------------------

    def _advance(self) -> None:
        """Do what can be done now, then set the timer for the next plan, or finish."""
        if self._final is not None:
            return
        now = self._now()
        while True:
            plan = make_plan(self._children, now)
            if not self._apply(plan, now):
                break
        abandon_at = self._abandons_at(now)
        if self._ending is not None and abandon_at is None:
            self._finish(self._ending)
        elif self._ending is None and all(child.status in ENDED for child in self._children):
            self._finish("completed")
        else:
            self._advance_at(min(plan.again_at, abandon_at or math.inf))

    def _apply(self, plan: SupervisorPlan, now: float) -> bool:
        """Do what *plan* says; false if there was nothing to do."""
        if plan.ask is not None:
            self._ask(self._children[plan.ask], now)
        elif plan.cancel is not None:
            self._cancel(self._children[plan.cancel], now)
        elif plan.skip is not None:
            self._children[plan.skip].skipped = True
        for index in plan.start:
            self._start(self._children[index])
        return bool(plan.start) or (plan.ask, plan.cancel, plan.skip) != (None, None, None)

    def _ask(self, child: SupervisedChild, now: float) -> None:
        left = sum(1 for each in self._children if each.alive and each.must_end and not each.asked)
        child.ask(now + share(child.by, now, left))

    def _cancel(self, child: SupervisedChild, now: float) -> None:
        self._forced = True
        child.cancel(now, patience=GRACE / len(self._children))

    def _start(self, child: SupervisedChild) -> None:
        child.at = child.next_restart_ms = None
        if child.spec.lease is None:
            self._launch(child)
            return
        child.status, child.wait_reason = "waiting", "lease"
        child.claim = self._registry.leases.claim(
            child.spec.lease, partial(self._launch, child), partial(self._lease_lost, child)
        )

    def _launch(self, child: SupervisedChild) -> None:
        kind = "child_restart_started" if child.started else "child_started"
        task = _task_below(self._task, child.spec.name, "child")
        self._registry.remember(task, child)
        self._context.copy().run(child.launch, task, self._now(), _live)
        self._events.counters["started"] += 1
        self._events.note(child, kind, f"attempt {child.attempt}")

    def _lease_lost(self, child: SupervisedChild) -> None:
        """Cancel *child* at once: another process may start it at any moment."""
        now = self._now()
        if not child.alive:  # the claim failed before the child started: claim again
            child.claim, child.at = None, now + CLAIM_AGAIN
        elif not child.cancelled:
            child.plan_end("lease", now)
            self._cancel(child, now)
        self._advance()

    def _end_all(self, by: float) -> None:
        for child in self._children:
            if child.alive:
                child.plan_end("stop", by)
            elif child.status not in ENDED:
                child.release_lease()
                child.stay_ended("stopped")

    def _abandons_at(self, now: float) -> float | None:
        """Return when the last running child is abandoned; None if no child runs.

        A supervisor that does not stop abandons no child: it waits.
        """
        if self._ending is None:
            return math.inf
        latest = None
        for child in self._children:
            if not child.alive:
                continue
            if not child.skipped:
                return math.inf
            if not is_due(child.abandon_at, now):
                latest = max(latest or 0.0, child.abandon_at)
        return latest

    def _advance_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < math.inf:
            self._timer = self._runtime.clock.call_at(when, self._advance)

    # -- the end -----------------------------------------------------------------------------

    def _finish(self, status: SupervisorStatus) -> None:
        for child in self._children:
            if child.alive:
                self._abandon(child)
        self._status = status
        if status == "completed":
            self._events.note(None, "supervisor_completed")
        else:
            self._events.note(None, "supervisor_stopped", "forced" if self._forced else "drained")
        self._advance_at(math.inf)
        self._final = self.state()
        self._registry.ended(self)
        for waiter in self._waiters:
            resolve(waiter)
        self._waiters.clear()
        self._escalate_failure()

    def _abandon(self, child: SupervisedChild) -> None:
        assert child.handle is not None
        child.stay_ended("abandoned")
        where = child.handle._task.thread or "its task"
        self._events.note(child, "child_abandoned", f"{where} still runs after its cancel")
        logger.warning(
            "%s: child %r is abandoned: %s still runs", self.name, child.spec.name, where
        )

    def _escalate_failure(self) -> None:
        """Fail the parent with the failure that ended this supervisor; without one, log it."""
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if self._parent is not None and self._parent.alive:
            self._parent.supervisor._inner_escalated(self._parent, failure)
        else:
            logger.error("%s", failure, exc_info=failure)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def __repr__(self) -> str:
        return f"<Supervisor {self.id} {self.name!r} {self.state().status}>"


def _task_below(parent: Task, name: str, kind: str = "supervisor") -> Task:
    return Task(parent.runtime, parent.child_id(kind), name, parent, group_id=parent.group_id)


async def _live(call: Any, context: ChildContext) -> Any:
    """Run a child's task; if it returns a supervisor, wait until that has ended."""
    try:
        value = await call(context)
    except SystemExit as error:  # as it is, it would end the loop
        raise HarnError(f"the child called sys.exit({error.code!r})") from error
    if isinstance(value, Supervisor):
        await value._wait_as_child()
        return None
    return value


def _no_interruption() -> None:
    """Ignore the stop: `SupervisedChild.ask` stops the supervisors below the child."""


def _output(value: object) -> str:
    return (message_of if isinstance(value, str) else repr_of)(value, LONGEST_OUTPUT)
