"""The running task as a caller sees it: `RuntimeContext`, made when `runtime_context` is called."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from harn.context import Task
from harn.records import fields_of
from harn.telemetry.spans import current_ids


@dataclass(frozen=True, slots=True)
class RuntimeDebug:
    """Live state for tools, collected when it is asked for."""

    supervisors: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """The running task, and the work that it belongs to. Unknown values are None.

    >>> import harn
    >>> async def main() -> tuple[str | None, bool]:
    ...     context = harn.runtime_context()
    ...     return context.tenant_id, context.cancelled
    >>> harn.run(main, tenant_id="acme")
    ('acme', False)
    """

    task_id: str
    parent_task_id: str | None
    root_task_id: str
    task_name: str
    task_group_id: str | None
    scope_id: str | None
    pipeline_id: str | None
    workflow_id: str | None
    run_id: str | None
    stage_id: str | None
    worker_id: str | None
    agent_session_id: str | None
    parent_agent_session_id: str | None
    root_agent_session_id: str | None
    agent_name: str | None
    trigger_id: str | None
    trigger_event_id: str | None
    binding_key: str | None
    tenant_id: str | None
    org_id: str | None
    provider: str | None
    trace_id: str | None
    span_id: str | None
    scheduler_key: str | None
    runner: str | None
    capacity_class: str | None
    context_values: dict[str, Any]
    cancelled: bool
    debug: RuntimeDebug

    def as_dict(self) -> dict[str, Any]:
        """Return every field, JSON-ready as far as the context values are."""
        return {**fields_of(self), "debug": asdict(self.debug)}  # which holds records of its own


def context_of(task: Task) -> RuntimeContext:
    """Describe *task*, and the span that is open here."""
    trace_id, span_id = current_ids()
    sources = task.runtime.debug_sources
    return RuntimeContext(
        task_id=task.id,
        parent_task_id=task.parent.id if task.parent else None,
        root_task_id=task.root.id,
        task_name=task.name,
        task_group_id=task.group_id,
        scope_id=task.group_id or task.root.id,
        trace_id=trace_id,
        span_id=span_id,
        context_values=dict(task.values),
        cancelled=task.cancelled,
        debug=RuntimeDebug(**{name: ask() for name, ask in sources.items()}),
        **fields_of(task.ambient),
    )
