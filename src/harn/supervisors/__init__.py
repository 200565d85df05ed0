"""Supervisor trees: children that are started, watched, restarted and stopped.

spec         strategies, restart policies, children: checked where they enter
policy       what follows when a child ends: pure
plan         who is asked, cancelled or started next: pure
supervisor   carries both out
member       one child while it is supervised
aftermath    what an exit means for a member and its siblings
ledger       events and counters
registry     supervisor_start; all supervisors of a runtime
lease        a child that runs in one process at a time
records      what is shown
"""

from harn.supervisors.records import (
    ChildContext,
    ChildState,
    SupervisorEvent,
    SupervisorMetrics,
    SupervisorState,
)
from harn.supervisors.registry import Supervisors, supervisor_start
from harn.supervisors.spec import Child, Lease, Restart
from harn.supervisors.supervisor import Supervisor

__all__ = [
    "Child",
    "ChildContext",
    "ChildState",
    "Lease",
    "Restart",
    "Supervisor",
    "SupervisorEvent",
    "SupervisorMetrics",
    "SupervisorState",
    "Supervisors",
    "supervisor_start",
]
