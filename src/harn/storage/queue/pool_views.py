"""A shared pool, read: what has changed since an offset, its tasks, and its slots."""

from __future__ import annotations

from typing import Any

import msgspec

from harn.storage.operations import Operation, Rows, ask, ask_together
from harn.storage.queue.pool_records import PoolSettings, Totals, read_pool
from harn.storage.queue.read_queue import read_queue
from harn.storage.queue.stored_jobs import StoredJob, read_jobs
from harn.topics import queue_topics

PAGE = 500
"""Records, and tasks, that one operation reads at most."""
BUDGET = 16 * 1024 * 1024
"""Roughly the bytes of each topic's records that it reads; one record always fits."""
OWN = ("job_claimed", "job_acked")
"""Records of a consumer that only this consumer itself writes; another one may end its claims."""


class PoolChanges(msgspec.Struct, frozen=True):
    """What happened in a pool since two offsets."""

    jobs_head: int
    claims_head: int
    """The offsets up to which this tells everything."""
    touched: list[StoredJob]
    """Tasks of which something is new, as they are now."""
    withdrawn: list[int]
    cancels: list[int]
    """Running tasks that another process asks to cancel."""
    settings: PoolSettings | None
    """Those of the latest opener, if they may be new."""
    is_all: bool


def pool_changes(
    queue: str, after_jobs: int, after_claims: int, consumer: str
) -> Operation[PoolChanges]:
    """Read what other processes than *consumer* have done since two offsets."""
    topics = queue_topics(queue)
    page = {"limit": PAGE, "budget": BUDGET}
    answers: Any = yield ask_together(
        [
            ask("topic_head", topic=topics.claims),  # first: what comes later may be read below
            ask("topic_head", topic=topics.jobs),
            ask("read_events", topic=topics.claims, after=after_claims, **page),
            ask("read_events", topic=topics.jobs, after=after_jobs, **page),
        ]
    )
    claims_head, jobs_head, claims, jobs = answers
    gathered = _Gathered(consumer)
    for _, kind, payload, *_ in claims:
        gathered.add(kind, payload)
    gathered.ids |= {int(row[0]) for row in jobs}
    touched = (yield from read_jobs(queue, sorted(gathered.ids))) if gathered.ids else []
    settings = (yield ask("pool_settings", queue=queue)) if gathered.is_opened else []
    return PoolChanges(
        int(jobs[-1][0]) if jobs else after_jobs,
        int(claims[-1][0]) if claims else after_claims,
        touched,
        gathered.withdrawn,
        gathered.cancels,
        read_pool(settings[0][0]) if settings else None,
        _reaches(claims, claims_head) and _reaches(jobs, jobs_head),
    )


def _reaches(page: Rows, head: Rows) -> bool:
    """Tell whether a page is the last one before the newest offset, *head*.

    Its length does not tell: of large records it has fewer than `PAGE`. An empty one is the last
    even so, since the newest offsets may have no records.
    """
    return not page or bool(page[-1][0] >= head[0][0])


class _Gathered:
    """The tasks that records tell of."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self.ids: set[int] = set()
        self.withdrawn: list[int] = []
        self.cancels: list[int] = []
        self.is_opened = False
        """Whether the pool was opened, perhaps with another cap."""

    def add(self, kind: str, payload: bytes | None) -> None:
        try:
            record = msgspec.json.decode(bytes(payload or b"null"))
        except msgspec.DecodeError:
            return
        if not isinstance(record, dict):
            return
        if kind in OWN and record.get("consumer_id") == self._consumer:
            return
        id: Any = record.get("job_event_id")
        if kind == "pool_opened":
            self.is_opened = True
        elif kind == "job_withdrawn":
            self.withdrawn.append(id)
        elif kind == "job_cancel_asked":
            self.cancels.append(id)
        elif id is not None:
            self.ids.add(id)
        else:
            self.ids.update(record.get("job_event_ids", ()))


def pool_tasks(queue: str, after: int, limit: int = PAGE) -> Operation[list[StoredJob]]:
    """Read tasks of a pool by id, ascending, after an id."""
    row = yield from read_queue(queue)
    if row is None:
        return []
    found = yield ask("page_of_all", queue_id=row.queue_id, after=after, limit=limit)
    return (yield from read_jobs(queue, [int(id) for (id,) in found]))


class PoolCounts(msgspec.Struct, frozen=True):
    """The counts of a pool, those of trimmed tasks included."""

    totals: Totals
    completed: int
    failed: int
    rejected: int
    cancelled: int


def count_pool(queue: str) -> Operation[PoolCounts]:
    """Count the tasks of a pool."""
    row = yield from read_queue(queue)
    assert row is not None
    [totals] = yield ask("pool_totals", queue_id=row.queue_id)
    return PoolCounts(Totals(*map(int, totals)), row.acked, row.dead, row.purged, row.cancelled)


class HeldSlot(msgspec.Struct, frozen=True):
    """A slot of a pool: the running task, and the lease under which it is held."""

    task: int
    lease: str | None


class ListedPool(msgspec.Struct, frozen=True):
    """A pool of the store: its queue, its settings, its counts and its slots."""

    queue: str
    settings: PoolSettings
    counts: PoolCounts
    held: list[HeldSlot]


def list_pools() -> Operation[list[ListedPool]]:
    """Return every pool of the store with its counts and its slots."""
    pools = []
    for queue_id, name, settings in (yield ask("list_pools")):
        counts = yield from count_pool(name)
        rows = yield ask("pool_running", queue_id=queue_id)
        held = [HeldSlot(int(id), lease) for id, lease in rows]
        pools.append(ListedPool(name, read_pool(settings), counts, held))
    return pools
