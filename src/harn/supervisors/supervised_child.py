"""The state of a supervised child: its status, its task, and what is planned for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from harn.context import Frame, Task
from harn.graceful_stop import request_stop
from harn.supervisors.plan import GRACE
from harn.supervisors.records import ChildContext, ChildState, ChildStatus, WaitReason
from harn.supervisors.restart_policy import RestartHistory, restart_noted
from harn.supervisors.spec import ChildSpec
from harn.tasks import TaskHandle, launch

if TYPE_CHECKING:
    from harn.supervisors.lease import LeaseClaim
    from harn.supervisors.supervisor import Supervisor

EndReason = Literal["stop", "propagation", "lease"]


class SupervisedChild:
    """One child's state; only its supervisor changes it.

    It is also the nursery of the child's task, so that the supervisor learns of the task's end.
    """

    __slots__ = (
        "abandon_at",
        "alive",
        "asked",
        "at",
        "attempt",
        "batch",
        "by",
        "call",
        "cancelled",
        "claim",
        "counts_in_budget",
        "end_reason",
        "escalated",
        "frame",
        "handle",
        "history",
        "inner",
        "last_error",
        "must_end",
        "next_restart_ms",
        "restart_count",
        "skipped",
        "spec",
        "started",
        "status",
        "supervisor",
        "trial",
        "until",
        "wait_reason",
    )

    def __init__(self, supervisor: Supervisor, spec: ChildSpec, call: Any) -> None:
        self.supervisor: Supervisor = supervisor
        self.spec: ChildSpec = spec
        self.call: Any = call
        self.status: ChildStatus = "pending"
        self.wait_reason: WaitReason | None = None
        self.last_error: str | None = None
        self.next_restart_ms: int | None = None
        self.history: RestartHistory = RestartHistory()
        self.restart_count: int = 0
        self.attempt: int = 0
        self.started: bool = False
        self.counts_in_budget: bool = False
        """Whether its next start is a restart for its own exit, which counts in its budget."""
        self.trial: bool = False
        """Whether its next start is the trial after an open circuit."""
        self.handle: TaskHandle[Any] | None = None
        self.frame: Frame | None = None
        self.inner: list[Supervisor] = []
        """Supervisors that this child started."""
        self.escalated: BaseException | None = None
        """The failure that one of those escalated."""
        self.claim: LeaseClaim | None = None
        """Its lease, held or waited for."""
        # What the plan reads:
        self.alive: bool = False
        self.at: float | None = None
        self.batch: int | None = None
        self.withdraw_end()

    def withdraw_end(self) -> None:
        """Undo `plan_end`: the child no longer has to end."""
        self.must_end: bool = False
        self.end_reason: EndReason = "stop"
        self.asked: bool = False
        self.cancelled: bool = False
        self.skipped: bool = False
        self.by: float = 0.0
        self.until: float = 0.0
        self.abandon_at: float = 0.0

    def plan_end(self, end_reason: EndReason, by: float) -> None:
        """Plan its end, *by* that time if possible; a stop overrides other reasons."""
        if self.must_end:
            self.by = min(self.by, by)
            if self.asked and not self.cancelled:
                self.until = min(self.until, by)
            if end_reason == "stop":
                abandon_at = by + GRACE
                if self.end_reason == "stop":
                    abandon_at = min(self.abandon_at, abandon_at)
                self.end_reason, self.abandon_at = end_reason, abandon_at
            return
        self.must_end, self.end_reason, self.by = True, end_reason, by

    def ask(self, until: float) -> None:
        """Ask it to stop until *until*, and the supervisors that it started too."""
        assert self.handle is not None
        self.asked = True
        self.status = "draining"
        self.until = until
        request_stop(self.handle._task)
        for inner in list(self.inner):
            inner._request_stop(until)

    def cancel(self, now: float, patience: float) -> None:
        """Cancel it; the next child is asked after *patience* seconds at the latest."""
        assert self.handle is not None
        self.asked = self.cancelled = True
        self.status = "draining"
        self.until = now + patience
        self.abandon_at = max(now + GRACE, self.by)
        for inner in list(self.inner):
            inner._request_stop(now)
        self.handle.cancel()

    def launch(self, task: Task, now: float, live: Callable[..., Awaitable[Any]]) -> None:
        """Start it as *task*; a restart for its own exit is recorded in its budget."""
        if self.counts_in_budget:
            self.history = restart_noted(self.history, self.spec.policy, now)
        self.attempt += not self.trial
        self.counts_in_budget = self.trial = False
        self.batch = None
        self.started = self.alive = True
        self.status, self.wait_reason = "running", None
        self.frame = Frame(task)
        call = (self.call, self.context())
        self.handle = launch(task, live, call, nursery=self, frame=self.frame)
        assert task.aio is not None
        task.runtime.own(task.aio)

    def ended(self) -> None:
        """Note that its task has ended."""
        self.alive = False
        self.handle = self.frame = None
        self.release_lease()

    def release_lease(self) -> None:
        """Release its lease, or stop waiting for it."""
        claim, self.claim = self.claim, None
        if claim is not None:
            claim.release()

    def wait(self, reason: WaitReason, at: float, at_ms: int) -> None:
        """Let it wait until *at*, or longer if a later start is already planned."""
        self.status = "circuit_open" if reason == "circuit_open" else "waiting"
        self.wait_reason = reason
        self.postpone(at, at_ms)

    def postpone(self, at: float, at_ms: int) -> None:
        """Do not start it before *at*."""
        if self.at is None or at > self.at:
            self.at, self.next_restart_ms = at, at_ms

    def stay_ended(self, status: ChildStatus, reason: WaitReason | None = None) -> None:
        """Leave it ended with *status*; it is not started again."""
        self.status, self.wait_reason = status, reason
        self.at = self.next_restart_ms = self.batch = None

    def context(self) -> ChildContext:
        """Return the argument of its task."""
        return ChildContext(
            self.supervisor.id,
            self.spec.name,
            self.spec.kind,
            self.attempt,
            self.attempt - 1,
            self.claim.epoch if self.claim is not None else None,
        )

    def state(self) -> ChildState:
        """Return its state as a record."""
        return ChildState(
            self.spec.name,
            self.spec.kind,
            self.status,
            self.restart_count,
            self.last_error,
            self.wait_reason,
            self.spec.lease.name if self.spec.lease is not None else None,
            self.next_restart_ms,
        )

    def adopt(self, handle: TaskHandle[Any]) -> None:
        """Accept the child's task; nothing has to be done."""

    def child_ended(self, handle: TaskHandle[Any], error: BaseException | None) -> None:
        """Tell the supervisor that the child's task has ended."""
        self.supervisor._child_ended(self, handle)

    def child_failed(self, error: BaseException) -> None:
        """Do nothing: `child_ended` has handled the failure."""
