"""The counters of named permits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args, overload

from harn.current import current_runtime
from harn.option_checks import one_of
from harn.records import SparseRecord
from harn.sync.named_permits import Kind, Permits
from harn.sync.permit_queue import PermitQueue
from harn.sync.permits import MOST_READERS
from harn.sync.wait_queue import guard


@dataclass(frozen=True, slots=True)
class SyncMetrics(SparseRecord):
    """The counters of one key. *current_held* counts permits; a writer counts as one.

    >>> import harn
    >>> async def main() -> int:
    ...     async with await harn.sync_mutex_acquire("repo"):
    ...         return harn.sync_metrics("mutex", "repo").current_held
    >>> harn.run(main)
    1
    """

    kind: str
    key: str
    capacity: int | None
    acquisition_count: int
    timeout_count: int
    cancellation_count: int
    release_count: int
    current_held: int
    current_queue_depth: int
    max_queue_depth: int
    total_wait_ms: int
    total_held_ms: int


@overload
def sync_metrics(kind: Kind, key: str) -> SyncMetrics | None: ...
@overload
def sync_metrics(kind: Kind | None = None, key: None = None) -> list[SyncMetrics]: ...
@overload
def sync_metrics(kind: None = None, *, key: str) -> list[SyncMetrics]: ...
def sync_metrics(
    kind: Kind | None = None, key: str | None = None
) -> SyncMetrics | list[SyncMetrics] | None:
    """Return the counters of *kind* and *key*, or None if there is no such key.

    Without one of them, return a list of all that match. `mutex` blocks have no counters. The
    counters are read one by one, so another thread than the loop's may see a release in one counter
    and not yet in another.

    >>> import asyncio
    >>> from harn import sync_gate_acquire
    >>> async def main() -> int:
    ...     async with await sync_gate_acquire("workflow-runner", 8):
    ...         return sync_metrics("gate", "workflow-runner").current_held
    >>> asyncio.run(main())
    1
    """
    if kind is not None:
        one_of("kind", kind, get_args(Kind))
    named = current_runtime().service(Permits).named
    with guard:
        if kind is not None and key is not None:
            found = named[kind].get(key)
            return None if found is None else _metrics(found)
        return [
            _metrics(queue)
            for each, queues in named.items()
            if kind in (None, each)
            for name, queue in queues.items()
            if key in (None, name)
        ]


def _metrics(queue: PermitQueue) -> SyncMetrics:
    is_rwlock = queue.kind == "rwlock"
    released = queue.released_by_threads  # the loop has not added them to `free` yet
    held = queue.capacity - queue.free - sum(waiter.want for waiter, _ in released)
    held_seconds = queue.held_seconds + sum(held_for for _, held_for in released)
    return SyncMetrics(
        kind=queue.kind,
        key=str(queue.key),
        capacity=None if is_rwlock else queue.capacity,
        acquisition_count=queue.acquisitions,
        timeout_count=queue.timeouts,
        cancellation_count=queue.cancellations,
        release_count=queue.acquisitions - queue.out + len(released),
        current_held=1 if is_rwlock and held == MOST_READERS else held,
        current_queue_depth=queue.queued,
        max_queue_depth=queue.longest_queue,
        total_wait_ms=round(queue.wait_seconds * 1000),
        total_held_ms=round(held_seconds * 1000),
    )
