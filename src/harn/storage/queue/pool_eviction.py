"""Which queued task a full shared pool drops for a new one: the oldest, or one of the longest line.

The lines of `ring_buffer(evict="longest")` are the partitions of the tasks. The buffer's capacity
bounds how many tasks are queued, so they are read once for all new tasks of an operation.
"""

from __future__ import annotations

from collections.abc import Iterable

from harn.storage.operations import Operation, ask
from harn.storage.queue.pool_records import PRIORITY_WIDTH, PoolSettings
from harn.storage.queue.queue_row import QueueState
from harn.topics import queue_topics


def oldest_task(state: QueueState) -> Operation[int | None]:
    """Return the queued task that was submitted first."""
    found = yield ask(
        "pool_oldest",
        queue_id=state.queue_id,
        topic=queue_topics(state.name).jobs,
        runnable=None,
        looked=0,
        limit=1,
    )
    return int(found[0][0]) if found else None


def queued_lines(state: QueueState, settings: PoolSettings) -> Operation[Lines]:
    """Read the queued tasks of a pool by partition."""
    rows = yield ask("pool_queued", queue_id=state.queue_id)
    start = PRIORITY_WIDTH if settings.order == "by_key" else 0
    return Lines((int(id), str(key)[start:]) for id, key in rows)


class Lines:
    """Queued tasks by partition; each new task sees those that were there before it."""

    def __init__(self, queued: Iterable[tuple[int, str]]) -> None:
        self._coming = sorted(queued, reverse=True)
        self._partition = dict(self._coming)
        self._lines: dict[str, list[int]] = {}

    def victim(self, newcomer: int) -> int | None:
        """Return the oldest task of the longest line that *newcomer* meets, and drop it.

        Of equal lines it is the newcomer's own, else the one that has been as long for longest.
        """
        while self._coming and self._coming[-1][0] < newcomer:
            id, partition = self._coming.pop()
            self._lines.setdefault(partition, []).append(id)
        if not self._lines:
            return None
        own = self._partition.get(newcomer)

        def rank(partition: str) -> tuple[int, bool, int]:
            line = self._lines[partition]
            return -len(line), partition != own, line[-1]

        longest = min(self._lines, key=rank)
        line = self._lines[longest]
        victim = line.pop(0)
        if not line:
            del self._lines[longest]
        return victim
