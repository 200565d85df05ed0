"""The work that would be left unfinished if the process ended now: `unsettled_state`.

Each room that has work under way adds a source when its service is made. This module knows only
the sources: a runtime that never made a pool has no source for pools.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from harn.current import current_runtime
from harn.records import Record, fields_of
from harn.runtime import Runtime

Kind = Literal[
    "suspended_subagents",
    "queued_triggers",
    "partial_handoffs",
    "in_flight_llm_calls",
    "pool_pending_tasks",
]


class OpenAgent(Record, msgspec.Struct, frozen=True, kw_only=True):
    """An `agent_loop` in a turn; *iteration* counts the calls of the model, from 1.

    A daemon between turns, which waits for mail, is not listed.
    """

    task_id: str
    task_name: str
    tenant_id: str | None
    iteration: int
    tool_calls: int
    started_at_ms: int
    age_ms: int


class QueuedTrigger(Record, msgspec.Struct, frozen=True, kw_only=True):
    """An event that waits at a gate of its trigger, or for its next attempt."""

    trigger_id: str
    binding_key: str
    event_id: str
    attempt: int
    tenant_id: str | None
    received_at: str
    age_ms: int


class PartialHandoff(Record, msgspec.Struct, frozen=True, kw_only=True):
    """Work that was taken over and has not ended.

    A `job` was claimed from a queue in this process: *name* is the queue's, *id* the job's, and
    its age counts from the enqueue. A `dispatch` is an event at its trigger's handler: *name* is
    the trigger's id, *id* the event's, and its age counts from its arrival.
    """

    kind: Literal["job", "dispatch"]
    id: str
    name: str
    attempt: int
    tenant_id: str | None
    consumer_id: str | None
    age_ms: int


class InFlightLlmCall(Record, msgspec.Struct, frozen=True, kw_only=True):
    """A request that a model has not answered in full."""

    provider: str
    model: str
    task_id: str
    tenant_id: str | None
    started_at_ms: int
    age_ms: int


class PendingPoolTask(Record, msgspec.Struct, frozen=True, kw_only=True):
    """A pool task that has not ended."""

    id: str
    task_id: str
    pool_id: str
    pool_name: str
    status: str
    priority: int
    key: str | None
    idempotency_key: str | None
    submitted_at: str
    submitted_at_ms: int
    submitted_by: str
    started_at: str | None
    age_ms: int


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


class UnsettledSources:
    """Where a runtime asks what is unsettled."""

    def __init__(self, runtime: Runtime) -> None:
        self._sources: defaultdict[Kind, list[Callable[[], list[Any]]]] = defaultdict(list)

    def add(self, kind: Kind, source: Callable[[], list[Any]]) -> None:
        """Ask *source*, too, for what is unsettled of *kind*."""
        self._sources[kind].append(source)

    def state(self) -> UnsettledState:
        """Ask every source; those of one kind follow each other in the order they were added."""
        found: dict[str, list[Any]] = {
            kind: [each for ask in sources for each in ask()]
            for kind, sources in self._sources.items()
        }
        return UnsettledState(**found)


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
    return current_runtime().service(UnsettledSources).state()
