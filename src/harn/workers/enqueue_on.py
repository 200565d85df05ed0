"""Enqueueing in the caller's own PostgreSQL transaction, see `docs/design/outbox.md`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from harn.errors import InvalidOption
from harn.storage import Store
from harn.storage.queue import JobDraft, QueueWork, claimable, work_on
from harn.workers.enqueue_receipt import EnqueueReceipt

if TYPE_CHECKING:
    from harn.runtime import Runtime
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


async def enter_committed(runtime: Runtime, queue: str) -> None:
    """Move the jobs of transactions that have committed by now from the outbox into *queue*.

    Those that commit meanwhile may stay there, so that this ends however many come. Cancelling
    leaves the rest in the outbox.
    """
    store, ask = runtime.service(Store), partial(claimable.outbox_span, queue)
    if not store.has_outbox:
        return
    work = QueueWork(dedupe_ms=runtime.settings.dedupe_window_ms)
    span = await store.run(ask, write=False)
    last = 0 if span is None else span[1]
    while span is not None and span[0] <= last:
        await store.run(partial(work_on, queue, work, runtime.ids.new))
        span = await store.run(ask, write=False)


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
