"""The supervisor: carries out what `policy` and `plan` decide, and tells what it did.

Nothing here waits. Something happens (a child ends, a timer fires, a lease is won or lost, somebody
asks for a stop), is noted on the member it concerns, and `_advance` brings the children one step
nearer to what the plan says: ask, cancel, pass by, start. Then a timer is set for the next look.
So there is no task of the supervisor's own that could be lost, and between two awaits of anybody
else its state is always whole.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from harn.clock import Timer, resolve
from harn.duration import Duration, to_seconds
from harn.errors import HarnError
from harn.runtime import Frame, Runtime, Task, current_frame
from harn.supervisors.member import Member, Why
from harn.supervisors.plan import GRACE, Plan, is_due, make_plan, share
from harn.supervisors.policy import (
    Again,
    CircuitOpen,
    GiveUp,
    Outcome,
    affected,
    after_exit,
    exit_noted,
    restart_noted,
)
from harn.supervisors.records import (
    ENDED,
    ChildContext,
    SupervisorEvent,
    SupervisorMetrics,
    SupervisorState,
    SupervisorStatus,
    WaitReason,
    describe,
)
from harn.supervisors.spec import SupervisorSpec
from harn.tasks import Err, TaskHandle, launch

if TYPE_CHECKING:
    from harn.supervisors.registry import Supervisors

logger = logging.getLogger("harn.supervisors")

EVENTS_KEPT = 10_000
"""Events that a supervisor keeps in memory; older ones are on the log's topic only."""


class Supervisor:
    """Children that are started, watched, restarted and stopped. Made by `supervisor_start`.

    It belongs to the runtime, or to the supervised child that started it, and ends with it. A
    child may stop its own supervisor; it is cancelled while it waits for that.
    """

    def __init__(
        self, registry: Supervisors, number: int, spec: SupervisorSpec, parent: Member | None
    ) -> None:
        starter = current_frame().task
        self.id = f"supervisor_{number}"
        self.name = spec.name or self.id
        self.strategy = spec.strategy
        self._registry = registry
        self._runtime: Runtime = registry.runtime
        self._spec = spec
        self._parent = parent
        self._task = Task(
            self._runtime,
            starter.child_id("supervisor"),
            self.name,
            starter,
            group_id=starter.group_id,
        )
        self._context = contextvars.copy_context()
        self._status: SupervisorStatus = "running"
        self._ending: SupervisorStatus | None = None
        """What it will be once all children have ended, when it has been decided that they do."""
        self._failure: BaseException | None = None
        self._final: SupervisorState | None = None
        self._counters: Counter[str] = Counter()
        self._events: deque[SupervisorEvent] = deque(maxlen=EVENTS_KEPT)
        self._seq = 0
        self._batches = 0
        self._forced = False
        self._timer: Timer | None = None
        self._waiters: list[asyncio.Future[None]] = []
        bind = registry.bind
        self._members = [Member(self, child, bind(child.task)) for child in spec.children]

    # -- what users ask ----------------------------------------------------------------------

    def state(self) -> SupervisorState:
        """Return the supervisor and its children as they are now; at the end, as they ended."""
        if self._final is not None:
            return self._final
        return SupervisorState(
            self.id,
            self.name,
            self._status,
            self.strategy,
            SupervisorMetrics(**self._counters),
            tuple(member.state() for member in self._members),
        )

    def events(self) -> list[SupervisorEvent]:
        """Return what has happened, oldest first; of very many, the latest 10,000."""
        return list(self._events)

    async def stop(self, timeout: Duration | None = None) -> SupervisorState:
        """Stop every child, the rightmost first, and return the final state.

        Each is asked first (`is_cancelled()` turns true in it) and has its share of *timeout*
        (`shutdown_ms` unless given) to end by itself; then it is cancelled. One that does not end
        even so is reported as `abandoned`. This returns a second after *timeout* at the latest.

        A second call joins the first and returns the same state; a shorter *timeout* hurries it.
        Cancelling this leaves the stop under way.
        """
        seconds = self._spec.shutdown if timeout is None else to_seconds(timeout, "timeout")
        self.request_stop(self._now() + seconds)
        return await self.wait()

    async def wait(self) -> SupervisorState:
        """Wait until the supervisor has ended and return its final state.

        It ends when it was stopped, when every child has ended for good (`completed`), or when it
        passed a failure on (`escalated`). Cancelling leaves it running.
        """
        if self._final is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self.state()

    # -- what the registry and parents ask ---------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self._final is not None

    def begin(self) -> None:
        """Start the children."""
        self._note(None, "supervisor_started")
        now, now_ms = self._now(), self._runtime.clock.now_ms()
        for member in self._members:
            member.postpone(now, now_ms)
            member.next_restart_ms = None
        self._advance()

    def request_stop(self, by: float) -> None:
        """Have every child end, if possible *by* then; returns at once."""
        if self._final is not None:
            return
        if self._ending is None:
            self._ending = "stopped"
            self._status = "draining"
            self._note(None, "supervisor_stopping")
        self._condemn_all(by)
        self._advance()

    async def end_with_parent(self) -> None:
        """Stop because the child that started this supervisor has ended."""
        await self.stop()

    # -- children end ------------------------------------------------------------------------

    def child_ended(self, member: Member, handle: TaskHandle[Any]) -> None:
        """Note that *member*'s task has ended, and go on."""
        self._registry.forget(handle.task)
        ended = handle.outcome()
        error = ended.error if isinstance(ended, Err) else None
        told = member.condemned or self._runtime.closing
        if member.escalated is not None:
            error, member.escalated = member.escalated, None
        elif told and handle.status == "cancelled":
            error = None
        member.alive = False
        member.handle = member.frame = None
        self._let_go_of_lease(member)
        if self._final is not None:
            return
        if error is not None:
            self._counters["failed"] += 1
            member.last_error = describe(error)
            self._note(member, "child_failed", member.last_error)
        elif handle.status == "completed":
            self._counters["stopped"] += 1
            member.last_error = None
            if (value := ended.value if not isinstance(ended, Err) else None) is not None:
                self._note(member, "child_output", _shown(value))
        if told:
            self._ended_as_told(member, error)
        else:
            self._ended_by_itself(member, error)
        self._advance()

    def _ended_by_itself(self, member: Member, error: BaseException | None) -> None:
        outcome: Outcome = "clean" if error is None else "failed"
        if error is None:
            self._note(member, "child_stopped", "completed")
        elif self.strategy == "escalate_to_parent":
            self._escalate(member, error)
            return
        now, policy = self._now(), member.spec.policy
        decision = after_exit(policy, outcome, member.history, now, index=member.spec.index)
        member.history = exit_noted(member.history, policy, decision, now)
        match decision:
            case GiveUp("spent"):
                self._counters["suppressed"] += 1
                member.rest("suppressed", "restart_cap_exceeded")
                self._note(member, "child_suppressed", "no restarts left in this window")
            case GiveUp():
                member.rest("stopped" if error is None else "failed")
            case Again(at, delay_ms):
                member.charged, member.trial = True, False
                self._schedule(member, "restart_backoff", at, delay_ms)
                self._take_along(member, at)
            case CircuitOpen(until):
                self._counters["suppressed"] += 1
                member.restart_count = 0
                member.charged = member.trial = True
                delay_ms = round((until - now) * 1000)
                member.wait("circuit_open", until, self._runtime.clock.now_ms() + delay_ms)
                self._note(member, "child_suppressed", f"circuit open for {delay_ms}ms")
                self._take_along(member, until)
            case _:
                assert_never(decision)

    def _ended_as_told(self, member: Member, error: BaseException | None) -> None:
        why, forced = member.why, member.cancelled
        member.spare()
        if self._ending is not None or self._runtime.closing:
            member.rest("stopped" if error is None else "failed")
            if error is None:
                self._note(member, "child_stopped", "forced" if forced else "drained")
            return
        message = "lease lost" if why == "lease" else "propagation restart"
        self._note(member, "child_stopped", message)
        if member.spec.policy.mode == "never":
            member.rest("stopped")
            return
        member.charged = member.trial = False
        now = self._now()
        at = now if member.at is None else max(now, member.at)
        reason: WaitReason = "lease" if why == "lease" else "propagation_restart"
        self._schedule(member, reason, at, max(0, round((at - now) * 1000)))

    def _schedule(self, member: Member, reason: WaitReason, at: float, delay_ms: int) -> None:
        self._counters["restarted"] += 1
        member.restart_count += 1
        member.wait(reason, at, self._runtime.clock.now_ms() + delay_ms)
        self._note(member, "child_restarted", f"scheduled after {delay_ms}ms")

    def _take_along(self, culprit: Member, at: float) -> None:
        """Have the siblings that the strategy names end too, and come back with *culprit*."""
        places = affected(self.strategy, culprit.spec.index, len(self._members))
        if len(places) < 2:
            return
        self._batches += 1
        together = [self._members[place] for place in places]
        merged = {member.batch for member in together} - {None}
        now, now_ms = self._now(), self._runtime.clock.now_ms()
        at_ms = now_ms + round((at - now) * 1000)
        for member in together:
            if member.status in ENDED:
                continue
            member.batch = self._batches
            if member is culprit:
                continue
            member.postpone(at, at_ms)
            if member.alive:
                member.condemn("propagation", now + self._spec.shutdown)
            elif member.claim is not None:
                self._let_go_of_lease(member)
                member.wait_reason = "propagation_restart"
        for member in self._members:
            if member.batch in merged:
                member.batch = self._batches

    # -- escalation --------------------------------------------------------------------------

    def _escalate(self, member: Member, error: BaseException) -> None:
        self._counters["escalated"] += 1
        member.rest("failed")
        self._note(member, "child_escalated", describe(error))
        self._ending = self._status = "escalated"
        self._failure = HarnError(
            f"supervisor {self.name!r} escalated: its child {member.spec.name!r} failed with "
            f"{describe(error)}"
        )
        self._failure.__cause__ = error
        self._condemn_all(self._now() + self._spec.shutdown)

    def inner_escalated(self, member: Member, error: BaseException) -> None:
        """Fail *member*, because a supervisor that it started passed *error* on."""
        if member.handle is not None:
            member.escalated = error
            member.handle.cancel()

    # -- carrying out ------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do what can be done now, then set the timer for the next look, or finish."""
        if self._final is not None:
            return
        now = self._now()
        while True:
            plan = make_plan(self._members, now)
            if not self._carry_out(plan, now):
                break
        last_call = self._last_call(now)
        if self._ending is not None and last_call is None:
            self._finish(self._ending)
        elif self._ending is None and all(member.status in ENDED for member in self._members):
            self._finish("completed")
        else:
            self._look_again(min(plan.look_again, last_call or math.inf))

    def _carry_out(self, plan: Plan, now: float) -> bool:
        if plan.ask is not None:
            self._ask(self._members[plan.ask], now)
        elif plan.cancel is not None:
            self._cancel(self._members[plan.cancel], now)
        elif plan.pass_by is not None:
            self._members[plan.pass_by].passed_by = True
        for place in plan.start:
            self._start(self._members[place])
        return bool(plan.start) or (plan.ask, plan.cancel, plan.pass_by) != (None, None, None)

    def _ask(self, member: Member, now: float) -> None:
        left = sum(1 for m in self._members if m.alive and m.condemned and not m.asked)
        member.asked = True
        member.status = "draining"
        member.until = now + share(member.by, now, left)
        assert member.handle is not None
        member.handle.task.cancel_requested = True
        for inner in list(member.inner):
            inner.request_stop(member.until)

    def _cancel(self, member: Member, now: float) -> None:
        self._forced = True
        member.asked = member.cancelled = True
        member.status = "draining"
        member.until = now + GRACE / len(self._members)
        member.last_call = max(now + GRACE, member.by)
        assert member.handle is not None
        for inner in list(member.inner):
            inner.request_stop(now)
        member.handle.cancel()

    def _start(self, member: Member) -> None:
        member.at = member.next_restart_ms = None
        if member.spec.lease is None:
            self._launch(member)
            return
        member.status, member.wait_reason = "waiting", "lease"
        member.claim = self._registry.leases.seek(
            member.spec.lease, partial(self._lease_won, member), partial(self._lease_lost, member)
        )

    def _launch(self, member: Member) -> None:
        now, policy = self._now(), member.spec.policy
        if member.charged:
            member.history = restart_noted(member.history, policy, now)
        member.attempt += not member.trial
        member.charged = member.trial = False
        member.batch = None
        task = Task(
            self._runtime,
            self._task.child_id("child"),
            member.spec.name,
            self._task,
            group_id=self._task.group_id,
        )
        member.frame = Frame(task)
        self._registry.remember(task, member)
        member.alive = True
        member.status, member.wait_reason = "running", None
        member.handle = self._context.copy().run(
            partial(launch, task, _live, (member.call, member.context())),
            nursery=member,
            frame=member.frame,
        )
        assert task.aio is not None
        self._runtime.own(task.aio)
        self._counters["started"] += 1
        kind = "child_restart_started" if member.started else "child_started"
        member.started = True
        self._note(member, kind, f"attempt {member.attempt}")

    def _condemn_all(self, by: float, why: Why = "stop") -> None:
        for member in self._members:
            if member.alive:
                member.condemn(why, by)
            elif member.status not in ENDED:
                self._let_go_of_lease(member)
                member.rest("stopped")

    def _last_call(self, now: float) -> float | None:
        """Return when the last of those still alive is given up; None when nobody is left.

        Of a supervisor that goes on, nobody is given up: the child is waited for.
        """
        if self._ending is None:
            return math.inf
        last = None
        for member in self._members:
            if not member.alive:
                continue
            if not member.passed_by:
                return math.inf
            if not is_due(member.last_call, now):
                last = max(last or 0.0, member.last_call)
        return last

    def _finish(self, status: SupervisorStatus) -> None:
        for member in self._members:
            if member.alive:
                self._abandon(member)
        self._status = status
        if status == "completed":
            self._note(None, "supervisor_completed")
        else:
            self._note(None, "supervisor_stopped", "forced" if self._forced else "drained")
        if self._timer is not None:
            self._timer.cancel()
        self._final = self.state()
        self._registry.ended(self)
        for waiter in self._waiters:
            resolve(waiter)
        self._waiters.clear()
        self._tell_of_failure()

    def _abandon(self, member: Member) -> None:
        assert member.handle is not None
        member.rest("abandoned")
        where = member.handle.task.thread or "its task"
        self._note(member, "child_abandoned", f"{where} still runs after its cancel")
        logger.warning(
            "%s: child %r is abandoned: %s still runs", self.name, member.spec.name, where
        )

    def _tell_of_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if self._parent is not None and self._parent.alive:
            self._parent.supervisor.inner_escalated(self._parent, failure)
        else:
            logger.error("%s", failure, exc_info=failure)

    # -- leases ------------------------------------------------------------------------------

    def _lease_won(self, member: Member) -> None:
        self._launch(member)

    def _lease_lost(self, member: Member) -> None:
        """Cancel *member* at once: another process may be running it any moment."""
        if member.alive and not member.cancelled:
            now = self._now()
            member.condemn("lease", now)
            self._cancel(member, now)
            self._advance()

    def _let_go_of_lease(self, member: Member) -> None:
        claim, member.claim = member.claim, None
        if claim is not None:
            claim.release()

    # -- small things ------------------------------------------------------------------------

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def _look_again(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if when < math.inf:
            self._timer = self._runtime.clock.call_at(when, self._advance)

    def _note(self, member: Member | None, kind: str, message: str = "") -> None:
        child = member.spec.name if member is not None else None
        event = SupervisorEvent(
            self._seq, self._runtime.clock.now_ms(), self.id, child, kind, message
        )
        self._seq += 1
        self._events.append(event)
        self._registry.noted(event)

    def __repr__(self) -> str:
        return f"<Supervisor {self.id} {self.name!r} {self.state().status}>"


async def _live(call: Callable[[ChildContext], Awaitable[Any]], context: ChildContext) -> Any:
    """Run a child's task; a supervisor that it returns is its life."""
    try:
        value = await call(context)
    except SystemExit as error:  # it would end the loop, not the child
        raise HarnError(f"the child called sys.exit({error.code!r})") from error
    if isinstance(value, Supervisor):
        await value.wait()
        return None
    if inspect.isawaitable(value):
        return await value
    return value


def _shown(value: object) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text[:500]
