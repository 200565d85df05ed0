"""The verb that drains a queue with a manifest's handlers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harn.errors import did_you_mean
from harn.orchestrator.drain_note import LOOKED_AT, why_none
from harn.orchestrator.manifest_consumer import manifest_consumer
from harn.orchestrator.verb_options import Drain, Tell
from harn.plurals import counted
from harn.workers import Consumer, worker_queues

if TYPE_CHECKING:
    from harn.orchestrator.service import Service


async def drain(service: Service, options: Drain, tell: Tell) -> dict[str, Any]:
    """Drain a queue. Cancelling releases the jobs whose handlers have not ended."""
    name = options.queue
    known = [each.queue for each in await worker_queues()]
    total = 0

    def progress(consumer: Consumer) -> None:
        tell(f"{name}: {consumer.drained} of {counted(max(total, consumer.drained), 'job')}")

    consumer, runner = manifest_consumer(
        service.runtime,
        name,
        service.manifest,
        consumer_id=options.consumer_id,
        claim_ttl=options.claim_ttl,
        concurrency=options.concurrency,
        stop_when_empty=not options.wait,
        work_within=options.work_within,
        progress=progress,
    )
    total = (await consumer.queue.summary()).ready
    report = (await service.queues.run(consumer)).as_dict()
    if not report["drained"] and (note := await _why_none(service, consumer, known)) is not None:
        report["note"] = note
    if runner.unwell:
        report["not_acked"] = {str(job): why for job, why in runner.unwell.items()}
    return report


async def _why_none(service: Service, consumer: Consumer, known: Sequence[str]) -> str | None:
    """Return why nothing was drained, if there is more to say than that no job is ready."""
    queue = consumer.queue
    if queue.name not in known:
        return f"no job was ever put into queue {queue.name!r}{did_you_mean(queue.name, known)}"
    if (await queue.summary()).paused:
        return f"queue {queue.name!r} is paused"
    ready = await queue.jobs(status="ready", limit=LOOKED_AT)
    return why_none(ready, consumer.triggers or (), service.manifest.path.name)
