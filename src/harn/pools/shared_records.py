"""A shared pool's tasks as the store keeps them, and back: settings, submits, ends.

The job of a task carries the whole submit, so that every process sees the same task. A durable
call travels with its arguments; a closure stays in the process that submitted it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from harn.durable_calls import DurableCall, durable_function_named
from harn.error_text import error_text, message_of, repr_of
from harn.exact_json import to_exact_json
from harn.ids import digest
from harn.option_checks import LARGEST
from harn.pools.audit import Submitted
from harn.pools.journal_records import LONGEST_RESULT
from harn.pools.options import PoolOptions
from harn.pools.task import PoolTask
from harn.storage.queue import shared_pools
from harn.telemetry.spans import TRACEPARENT, come_from, continue_from, traceparent_of, tracing
from harn.telemetry.tracebacks import traceback_text

if TYPE_CHECKING:
    from harn.pools.slots import Slots

logger: logging.Logger = logging.getLogger("harn.pools")

ORDERS: dict[str, shared_pools.Order] = {
    "fifo": "oldest",
    "lifo": "newest",
    "priority": "by_key",
    "fair_round_robin": "rotation",
}
NORMAL = 1
"""The queue's own priority, which all tasks share; a pool's priorities are keys of its shares."""
DAMAGED = "its record in the store is damaged"
"""What stands for the result of a task, or for its submitter, if that cannot be read."""
LONGEST_KEY = 200

_encode = msgspec.json.encode


class SharedSubmitted(Submitted, gc=False, frozen=True):
    """What was submitted to a shared pool; its id is made by the submitting process."""

    task_id: str = ""
    """The id of the task: a field, since it is read seven times in a task's life."""


class StoredTask(msgspec.Struct, omit_defaults=True):
    """The record of a task's job. The first eight fields are those that the queue reads."""

    priority: str
    max_attempts: int
    tenant_id: str | None
    binding_key: str | None
    trigger_id: str
    dedupe_key: str | None
    function: str | None
    task_id: str
    submitted_at_ms: int
    submitted_by: str
    task_priority: int = 0
    key: str | None = None
    idempotency_key: str | None = None
    labels: dict[str, str] = {}
    args: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    together: str | None = None
    """The first task of the `submit_many` that it belongs to, if that has several."""
    fingerprint: int | None = None
    """With an idempotency key: what tells this call from another one under the same key."""
    traceparent: str | None = None
    """The span of the submit of a durable call, for the process that runs it."""


class DamagedTask(StoredTask):
    """What stands for a record that cannot be read; no process can run its task."""


_read_record = msgspec.json.Decoder(StoredTask).decode


def settings_of(options: PoolOptions) -> shared_pools.PoolSettings:
    """Return what every process that opens the pool must agree on."""
    assert options.scope_id is not None
    retention = options.retention
    return shared_pools.PoolSettings(
        options.scope,
        options.scope_id,
        options.name,
        ORDERS[options.queue.kind],
        options.max_concurrent,
        options.queue.as_dict(),
        options.backpressure.as_dict(),
        {"count": retention.count, "age_ms": retention.age_ms},
    )


def headers_of(queue: str) -> bytes:
    """Return the headers of the records of a pool's tasks."""
    return _encode({"queue": queue})


def job_of(
    task: PoolTask,
    headers: bytes,
    lease: str,
    options: PoolOptions,
    tenant: str | None,
    together: str | None,
) -> shared_pools.JobDraft:
    """Return the job of a new *task* that the process of *lease* submits."""
    submitted, extras = task._submitted, task._extras
    call: DurableCall | None = extras.call
    record = StoredTask(
        "normal",
        0 if call is not None and call.function.rerun else 1,
        tenant,
        share_of(task, options),
        lease,
        None if submitted.idempotency_key is None else stored_text(submitted.idempotency_key),
        None if call is None else call.function.name,
        submitted.task_id,
        submitted.at,
        submitted.by,
        submitted.priority,
        submitted.key,
        submitted.idempotency_key,
        extras.labels or {},
        msgspec.UNSET if call is None else msgspec.Raw(call.arguments),
        together,
        extras.fingerprint,
        None if call is None or extras.span is None else traceparent_of(extras.span),
    )
    return shared_pools.JobDraft(
        _encode(record),
        headers,
        NORMAL,
        record.tenant_id,
        record.binding_key,
        lease,
        record.dedupe_key,
        record.max_attempts,
        function=record.function,
    )


def share_of(task: PoolTask, options: PoolOptions) -> str | None:
    """Return the share of the queue that *task* belongs to; None is one that no key can name."""
    kind, evict = options.queue.kind, options.backpressure.evict
    partition = None
    if task.partition is not None and (kind == "fair_round_robin" or evict == "longest"):
        partition = "=" + stored_text(task.partition)
    if kind == "priority":  # the highest one sorts first
        return f"{LARGEST - task.priority:0{shared_pools.PRIORITY_WIDTH}d}{partition or ''}"
    return partition


def stored_text(text: str) -> str:
    """Return *text* as a key that every store can hold and index; other texts give other keys."""
    safe = text.replace("%", "%25").replace("\0", "%00")
    return safe if len(safe) <= LONGEST_KEY else f"{safe[:100]}%~{digest(text)}"


def read_record(record: bytes, id: int) -> StoredTask:
    """Read the record of the job *id*; a damaged one gives a task that no process can run."""
    try:
        return _read_record(record)
    except msgspec.DecodeError as error:
        logger.warning("the record of job %d, a pool's task, cannot be read: %s", id, error)
        name = f"task_damaged_{id}"
        return DamagedTask("normal", 1, None, None, "", None, None, name, 0, DAMAGED)


def task_of(slots: Slots, record: StoredTask, field: str | None) -> PoolTask:
    """Return the task of *record*, as a handle of this process."""
    submitted = SharedSubmitted(
        slots.names,
        0,
        record.submitted_at_ms,
        record.task_priority,
        record.key,
        record.idempotency_key,
        record.submitted_by,
        record.task_id,
    )
    task = PoolTask(slots, submitted, None, record.task_priority, record.key, None)
    if record.fingerprint is not None:
        task._own_extras().fingerprint = record.fingerprint
    if record.labels:
        task._own_extras().labels = record.labels
        if field is not None:
            task.partition = record.labels.get(field, task.key)
    return task


def call_of(record: StoredTask) -> DurableCall | None:
    """Return the durable call of a task; None if this process does not know its function."""
    function = None if record.function is None else durable_function_named(record.function)
    if function is None or not isinstance(record.args, msgspec.Raw):
        return None
    return DurableCall(function, bytes(record.args))


def continue_trace(task: PoolTask, record: StoredTask) -> None:
    """Let *task*, submitted by another process, run in the trace of its submit."""
    if record.traceparent is None or not tracing():
        return
    span = come_from({TRACEPARENT: record.traceparent})
    if span is not None:
        task._own_extras().span = span
        task._place.run(continue_from, span)


def ending(
    task: PoolTask, claim_id: str, lease: str, status: str, result: Any, started_ms: int, now: int
) -> shared_pools.Settlement:
    """Return the settlement that ends *task*, whose closure returned *result* or failed with it."""
    about = task._extras.ticket, claim_id, lease
    took_ms = max(0, now - started_ms)
    if status == "completed":
        written = to_exact_json(result)
        if written is not None:
            return shared_pools.Settlement("ack", *about, written, handler_ms=took_ms)
        text = _encode(repr_of(result, LONGEST_RESULT))
        return shared_pools.Settlement("ack", *about, text, True, handler_ms=took_ms)
    if status == "failed":
        why = _failure(result)
        return shared_pools.Settlement("fail", *about, final=True, handler_ms=took_ms, **why)
    return shared_pools.Settlement("release", *about, reason="cancelled", handler_ms=took_ms)


def _failure(error: Any) -> dict[str, Any]:
    if not isinstance(error, BaseException):
        return {"error": message_of(error)}
    return {
        "error": error_text(error),
        "error_type": type(error).__name__,
        "error_message": message_of(error),
        "traceback": traceback_text(error),
    }
