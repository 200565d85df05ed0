"""The records of a supervisor: its state, its events, and the context of a child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from harn.records import Record, fields_of
from harn.supervisors.spec import Strategy

ChildStatus = Literal[
    "pending",
    "running",
    "waiting",
    "circuit_open",
    "draining",
    "stopped",
    "failed",
    "suppressed",
    "abandoned",
]
SupervisorStatus = Literal["running", "draining", "stopped", "completed", "escalated"]
WaitReason = Literal[
    "restart_backoff", "propagation_restart", "lease", "circuit_open", "restart_cap_exceeded"
]

CHILD_STATUSES: tuple[ChildStatus, ...] = get_args(ChildStatus)
ENDED: frozenset[ChildStatus] = frozenset(("stopped", "failed", "suppressed", "abandoned"))
"""The statuses of a child that is not started again."""


@dataclass(frozen=True, slots=True)
class ChildContext(Record):
    """The argument of a child's task.

    *attempt* counts from 1 and *restart_count* from 0; the trial after an open circuit increases
    neither. *lease_epoch* is the fencing token of the lease that the child holds. It increases with
    every holder, so that a system which the child writes to can refuse an older one.

    >>> ChildContext("supervisor_1", "tick", "task", 2, 1).restart_count
    1
    """

    supervisor_id: str
    child_name: str
    child_kind: str
    attempt: int
    restart_count: int
    lease_epoch: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name; the epoch only for a child with a lease."""
        shown = fields_of(self)
        if self.lease_epoch is None:
            del shown["lease_epoch"]
        return shown


@dataclass(frozen=True, slots=True)
class ChildState(Record):
    """A child at one moment. *next_restart_time* is in wall milliseconds.

    >>> import harn
    >>> async def fetch(ctx: harn.ChildContext) -> None:
    ...     raise OSError("no route")
    >>> async def main() -> tuple[str, str | None]:
    ...     child = harn.Child("fetch", fetch, restart=harn.Restart(mode="never"))
    ...     sup = await harn.supervisor_start(children=[child])
    ...     state = (await sup.wait()).child("fetch")
    ...     return state.status, state.last_error
    >>> harn.run(main)
    ('failed', 'OSError: no route')
    """

    name: str
    kind: str
    status: ChildStatus
    restart_count: int
    last_error: str | None
    current_wait_reason: WaitReason | None
    active_lease: str | None
    next_restart_time: int | None


@dataclass(frozen=True, slots=True)
class SupervisorMetrics(Record):
    """The counters of a supervisor.

    *started* counts every start, *stopped* clean exits only, *failed* exits with an error,
    *restarted* scheduled restarts, *suppressed* used-up budgets (including open circuits),
    *escalated* failures passed to the parent.

    >>> import harn
    >>> async def fetch(ctx: harn.ChildContext) -> None:
    ...     pass
    >>> async def main() -> harn.SupervisorMetrics:
    ...     sup = await harn.supervisor_start(children=[harn.Child("fetch", fetch)])
    ...     return (await sup.wait()).metrics
    >>> harn.run(main)
    SupervisorMetrics(started=1, stopped=1, failed=0, restarted=0, suppressed=0, escalated=0)
    """

    started: int = 0
    stopped: int = 0
    failed: int = 0
    restarted: int = 0
    suppressed: int = 0
    escalated: int = 0


@dataclass(frozen=True, slots=True)
class SupervisorState(Record):
    """A supervisor and its children, left to right, at one moment.

    >>> none = SupervisorMetrics()
    >>> idle = SupervisorState("supervisor_1", "x", "stopped", "one_for_one", none, ())
    >>> idle.as_dict()["_type"]
    'supervisor_state'
    """

    id: str
    name: str
    status: SupervisorStatus
    strategy: Strategy
    metrics: SupervisorMetrics
    children: tuple[ChildState, ...]

    def child(self, name: str) -> ChildState:
        """Return the child called *name*; `KeyError` if there is none."""
        for child in self.children:
            if child.name == name:
                return child
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, JSON-ready."""
        return {
            "_type": "supervisor_state",
            **fields_of(self),
            "metrics": self.metrics.as_dict(),
            "children": [child.as_dict() for child in self.children],
        }


@dataclass(frozen=True, slots=True)
class SupervisorEvent(Record):
    """One event; *seq* counts from 0, *child* is None for an event of the supervisor itself.

    >>> import harn
    >>> async def fetch(ctx: harn.ChildContext) -> None:
    ...     pass
    >>> async def main() -> list[str]:
    ...     sup = await harn.supervisor_start(children=[harn.Child("fetch", fetch)])
    ...     await sup.wait()
    ...     return [event.kind for event in sup.events()]
    >>> harn.run(main)
    ['supervisor_started', 'child_started', 'child_stopped', 'supervisor_completed']
    """

    seq: int
    at_ms: int
    supervisor_id: str
    child: str | None
    kind: str
    message: str
