"""The record that each model call leaves in the topic `llm.usage`.

It is written behind, like an audit: a call never waits for it. It never holds what was said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harn import topics
from harn.durable_work import durable_work_of
from harn.ratelimit.model_prices import Prices
from harn.records import Record

if TYPE_CHECKING:
    from harn.context import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord(Record):
    """One request to a model: for whom it was made, what it used, how it ended.

    *cost_usd* is None if the price is not known. *estimated* tells that the tokens are those
    reserved, because the caller never said what was used. A request that failed may have used
    tokens that its provider did not report: it has none here.
    """

    tenant_id: str | None
    queue: str | None
    job_id: str | None
    pool: str | None
    pool_task_id: str | None
    agent_session_id: str | None
    provider: str
    model: str | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None
    cached: bool
    retried: bool
    failed: bool
    error: str | None
    estimated: bool
    waited_ms: int
    duration_ms: int


def record_call(
    task: Task,
    route: tuple[str, str | None],
    tokens: tuple[int, int, int],
    *,
    retried: bool,
    error: BaseException | None,
    estimated: bool,
    waited_ms: int,
    duration_ms: int,
) -> None:
    """Record one request that *task* has made; *tokens* are input, output and cached ones."""
    runtime, work, ambient = task.runtime, task.work, task.ambient
    price = runtime.service(Prices).of(*route)
    is_job = work is not None and work.kind == "job"
    is_pool_task = work is not None and work.kind == "pool_task"
    call = CallRecord(
        tenant_id=ambient.tenant_id,
        queue=work.name if work and is_job else None,
        job_id=work.id if work and is_job else None,
        pool=work.name if work and is_pool_task else None,
        pool_task_id=work.id if work and is_pool_task else None,
        agent_session_id=ambient.agent_session_id,
        provider=route[0],
        model=route[1],
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        cached_tokens=tokens[2],
        cost_usd=None if price is None else price.of(*tokens),
        cached=tokens[2] > 0,
        retried=retried,
        failed=error is not None,
        error=None if error is None else type(error).__name__,
        estimated=estimated,
        waited_ms=waited_ms,
        duration_ms=duration_ms,
    )
    runtime.event_log.record(topics.LLM_USAGE, topics.LLM_CALLED, call.as_dict())
    if (durable := durable_work_of(task)) is not None:
        durable.used_tokens += tokens[0] + tokens[1]
