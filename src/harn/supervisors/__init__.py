"""Supervisor trees: children that are started, watched, restarted and stopped.

spec.py              the options of supervisor_start, checked: strategies, policies, children
restart_policy.py    whether and when a child that has ended is started again: pure
plan.py              which child is asked, cancelled or started next: pure
supervisor.py        applies both decisions
supervised_child.py  the state of one child
exits.py             what an exit changes for a child and its siblings
supervisor_events.py the events and counters of a supervisor
registry.py          supervisor_start; all supervisors of a runtime
lease.py             a child that runs in one process at a time
records.py           the records that a supervisor shows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
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
else:
    front_door(
        __name__,
        {
            "records": "ChildContext ChildState SupervisorEvent SupervisorMetrics SupervisorState",
            "registry": "Supervisors supervisor_start",
            "spec": "Child Lease Restart",
            "supervisor": "Supervisor",
        },
    )

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
