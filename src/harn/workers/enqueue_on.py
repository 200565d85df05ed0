"""Enqueueing in the caller's own PostgreSQL transaction, see `docs/design/outbox.md`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harn.errors import InvalidOption
from harn.storage.queue import JobDraft
from harn.workers.receipt import EnqueueReceipt

if TYPE_CHECKING:
    from harn.workers.queue import WorkerQueue


async def enqueue_on(queue: WorkerQueue, connection: object, job: JobDraft) -> EnqueueReceipt[Any]:
    """Enqueue *job* by the transaction of *connection*; the receipt has its ticket.

    Cancelling leaves the transaction as its driver does.
    """
    queue.runtime.check_here()
    store = queue.store
    if not store.has_outbox:
        accepted = f"None: it needs a PostgreSQL store, and this one is {store.place.engine}://"
        raise InvalidOption("connection", connection, accepted)
    ticket = await store.put_in_outbox(connection, {"queue": queue.name, **_columns(job)})
    topic, durability = queue.topics.responses, store.durability
    return EnqueueReceipt(queue.name, None, topic, durability, False, ticket)


def _columns(job: JobDraft) -> dict[str, Any]:
    return {
        "body": job.payload.decode(),
        "headers": job.headers.decode(),
        "priority": job.priority,
        "tenant_id": job.tenant_id,
        "binding_key": job.binding_key,
        "trigger_id": job.trigger_id,
        "dedupe_key": job.dedupe_key,
        "max_attempts": job.max_attempts,
        "not_before_ms": job.not_before_ms,
        "delay_ms": job.delay_ms,
        "function": job.function,
    }
