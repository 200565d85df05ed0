"""Supervisor trees: children that are started, watched, restarted and stopped.

spec.py              strategies, restart policies, children: checked where they enter
restart_policy.py    what follows when a child ends: pure
plan.py              which child is asked, cancelled or started next: pure
supervisor.py        carries both out
supervised_child.py  one child while it is supervised
exits.py             what an exit means for a child and its siblings
events.py            events and counters
registry.py          supervisor_start; all supervisors of a runtime
lease.py             a child that runs in one process at a time
records.py           what is shown
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
