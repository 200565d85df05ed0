"""The consumers of all processes, and how many jobs each has in flight."""

from __future__ import annotations

from collections import Counter

import msgspec

from harn.current import current_runtime
from harn.records import Record, fields_of
from harn.storage import Store
from harn.storage.leases import ConsumerRow, LeaseStore, list_consumers
from harn.storage.queue import in_flight_by_lease
from harn.topics import check_queue_name

MOST_LISTED = 10_000
"""Consumers listed, at most."""


class ConsumerState(Record, msgspec.Struct, frozen=True):
    """A consumer: `drain`, `harn worker` or `serve`, in this process or any other.

    *alive* is False when its lease has expired; such a consumer is listed for a day.

    >>> import harn
    >>> async def main() -> str:
    ...     async def look(job: harn.Job) -> None:
    ...         seen.extend(await harn.consumers("triage"))
    ...
    ...     seen: list[harn.ConsumerState] = []
    ...     await harn.worker_queue("triage").enqueue(1)
    ...     await harn.drain("triage", look, consumer_id="me")
    ...     return seen[0].consumer_id
    >>> harn.run(main)
    'me'
    """

    consumer_id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at_ms: int
    seen_at_ms: int
    in_flight: int
    alive: bool

    def as_dict(self) -> dict[str, object]:
        """Return every field, JSON-ready.

        >>> ConsumerState("w", "host", 1, ("q",), 0, 0, 2, True).as_dict()["queues"]
        ['q']
        """
        return {**fields_of(self), "queues": list(self.queues)}


async def consumers(queue: str | None = None) -> list[ConsumerState]:
    """Return the consumers of the current runtime's store, or those of one queue, oldest first.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     async def look(job: harn.Job) -> list[str]:
    ...         return [each.consumer_id for each in await harn.consumers("triage")]
    ...     await harn.worker_queue("triage").enqueue(1)
    ...     report = await harn.drain("triage", look, consumer_id="worker-a")
    ...     return report.responses[0]["outcome"]
    >>> harn.run(main)
    ['worker-a']
    """
    if queue is not None:
        check_queue_name(queue)
    runtime = current_runtime()
    leases = runtime.service(LeaseStore)
    if not leases.is_there:
        return []
    rows = await leases.store.run(lambda: list_consumers(MOST_LISTED), write=False)
    wanted = [row for row in rows if queue is None or queue in row.queues]
    served = sorted({name for row in wanted for name in row.queues})
    held: Counter[str] = Counter()
    for name in served:
        held.update(
            await runtime.service(Store).run(
                lambda name=name: in_flight_by_lease(name),  # type: ignore[misc]
                write=False,
            )
        )
    return [
        ConsumerState(
            row.consumer_id,
            row.host,
            row.pid,
            tuple(row.queues),
            row.started_at,
            row.seen_at,
            held[row.lease],
            row.expires_at > row.now,
        )
        for row in wanted
    ]


async def consumers_for(queue: str, function: str) -> int:
    """Return how many living consumers of *queue* can run *function*.

    Cancelling leaves nothing behind.
    """
    leases = current_runtime().service(LeaseStore)
    if not leases.is_there:
        return 0
    rows = await leases.store.run(lambda: list_consumers(MOST_LISTED), write=False)
    return sum(row.expires_at > row.now and _runs(row, queue, function) for row in rows)


def _runs(row: ConsumerRow, queue: str, function: str) -> bool:
    if queue not in row.queues:
        return False
    known = row.functions.get(queue)
    return known is None or function in known
