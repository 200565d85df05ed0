"""How much a queue holds, and what a drain did."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from harn.records import Record, fields_of
from harn.storage import Store
from harn.storage.queue import QueueCounts, count_queue, end_due_in
from harn.telemetry.html import html_fields
from harn.workers.enqueue_on import enter_committed

if TYPE_CHECKING:
    from harn.runtime import Runtime


class QueueSummary(Record, msgspec.Struct, frozen=True):
    """How much a queue holds. `ready` can be claimed now, `scheduled` later.

    >>> QueueSummary("q").as_dict()["ready"]
    0
    """

    queue: str
    ready: int = 0
    scheduled: int = 0
    in_flight: int = 0
    acked: int = 0
    purged: int = 0
    dead: int = 0
    responses: int = 0
    oldest_unclaimed_age_ms: int | None = None
    cancelled: int = 0
    paused: bool = False
    paused_keys: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return html_fields(f"queue {self.queue}", self.as_dict())


class DrainReport(Record, msgspec.Struct, frozen=True):
    """What one drain did; *responses* holds the newest ten thousand at most.

    >>> import harn
    >>> async def main() -> tuple[int, int]:
    ...     await harn.worker_queue("triage").enqueue(1)
    ...     report = await harn.drain("triage", lambda job: job.payload)
    ...     return report.drained, report.acked
    >>> harn.run(main)
    (1, 1)
    """

    queue: str
    consumer_id: str
    claim_ttl_ms: int
    drained: int
    acked: int
    deferred: int
    responses: list[dict[str, Any]]
    summary: QueueSummary

    def as_dict(self) -> dict[str, Any]:
        """Return every field, JSON-ready.

        >>> DrainReport("q", "me", 300_000, 0, 0, 0, [], QueueSummary("q")).as_dict()["drained"]
        0
        """
        return {**fields_of(self), "summary": self.summary.as_dict()}


async def count_in_full(runtime: Runtime, queue: str) -> QueueCounts | None:
    """Count *queue* in full, or return None if it was never used.

    Jobs of committed transactions enter it first, and expired claims are ended. Cancelling leaves
    nothing behind.
    """
    store = runtime.service(Store)
    counts = await store.run(partial(count_queue, queue), write=False)
    if counts.has_waiting if counts is not None else store.has_outbox:
        await enter_committed(runtime, queue)
        counts = await store.run(partial(count_queue, queue), write=False)
    if counts is not None and counts.is_due:
        await end_expired(runtime, queue)
        counts = await store.run(partial(count_queue, queue), write=False)
    return counts


async def end_expired(runtime: Runtime, queue: str) -> None:
    """End the claims on *queue* that have expired, until none is left."""
    while await runtime.service(Store).run(partial(end_due_in, queue, runtime.ids.new)):
        pass


def summarise(counts: QueueCounts) -> QueueSummary:
    """Return the summary of *counts*."""
    age = None if counts.oldest_at is None else max(0, counts.now - counts.oldest_at)
    return QueueSummary(
        counts.queue,
        counts.ready,
        counts.scheduled,
        counts.in_flight,
        counts.acked,
        counts.purged,
        counts.dead,
        counts.responses,
        age,
        counts.cancelled,
        counts.pauses.queue is not None,
        tuple(sorted(counts.pauses.held)),
    )
