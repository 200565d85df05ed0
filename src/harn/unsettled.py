"""The work that would be left unfinished if the process ended now: `unsettled_state`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harn.current import current_runtime
from harn.records import Record, fields_of
from harn.unsettled_sources import (
    InFlightLlmCall,
    OpenAgent,
    PartialHandoff,
    PendingPoolTask,
    QueuedTrigger,
    UnsettledSources,
)


@dataclass(frozen=True, slots=True)
class UnsettledState(Record):
    """Everything that is still under way in a runtime, by kind.

    >>> import harn
    >>> async def main() -> int:
    ...     pool = await harn.pool_create(name="review")
    ...     await pool.submit(harn.sleep, "1h")
    ...     return len(harn.unsettled_state().pool_pending_tasks)
    >>> harn.run(main)
    1
    """

    suspended_subagents: list[OpenAgent] = field(default_factory=list)
    queued_triggers: list[QueuedTrigger] = field(default_factory=list)
    partial_handoffs: list[PartialHandoff] = field(default_factory=list)
    in_flight_llm_calls: list[InFlightLlmCall] = field(default_factory=list)
    pool_pending_tasks: list[PendingPoolTask] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return every list, JSON-ready."""
        return {kind: [each.as_dict() for each in found] for kind, found in fields_of(self).items()}


def unsettled_state() -> UnsettledState:
    """Return what is still under way in this runtime.

    `pool_pending_tasks` lists pools by id; in each the queued tasks in order, then the running.
    `partial_handoffs` lists the jobs that this process has claimed, by its consumers or by hand,
    and the trigger dispatches that run. `queued_triggers` lists the events that wait at a gate or
    for their next attempt, `suspended_subagents` every open turn of an `agent_loop`, and
    `in_flight_llm_calls` the requests that a model has not answered.

    >>> import harn
    >>> async def main() -> int:
    ...     await harn.pool_create(name="review")
    ...     return len(unsettled_state().pool_pending_tasks)
    >>> harn.run(main)
    0
    """
    return UnsettledState(**current_runtime().service(UnsettledSources).found())
