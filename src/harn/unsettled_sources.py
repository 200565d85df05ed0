"""Where a runtime asks for the work under way that `unsettled_state` lists, and its records.

Each room that has work under way adds a source when its service is made. This module knows only
the sources: a runtime that never made a pool has no source for pools.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from harn.records import Record
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


class UnsettledSources:
    """Where a runtime asks what is unsettled."""

    def __init__(self, runtime: Runtime) -> None:
        self._sources: defaultdict[Kind, list[Callable[[], list[Any]]]] = defaultdict(list)

    def add(self, kind: Kind, source: Callable[[], list[Any]]) -> None:
        """Ask *source*, too, for what is unsettled of *kind*."""
        self._sources[kind].append(source)

    def found(self) -> dict[str, list[Any]]:
        """Ask every source; those of one kind follow each other in the order they were added."""
        return {
            kind: [each for ask in sources for each in ask()]
            for kind, sources in self._sources.items()
        }
