"""The tasks of a pool that have ended.

Retention bounds them by count and by age; a task and its idempotency key are forgotten together.
The counts by status include the tasks that were forgotten.
"""

from __future__ import annotations

from collections import deque

from harn.pools.idempotency_keys import IdempotencyKeys
from harn.pools.options import Retention
from harn.pools.snapshots import TERMINAL
from harn.pools.task import PoolTask


class EndedTasks:
    """The ended tasks of a pool, oldest first."""

    __slots__ = ("_age_ms", "_keys", "counts", "most", "next_due", "tasks")

    def __init__(self, retention: Retention, keys: IdempotencyKeys) -> None:
        self.most: int = retention.count
        self._age_ms = retention.age_ms
        self._keys = keys
        self.tasks: deque[PoolTask] = deque()
        self.counts: dict[str, int] = dict.fromkeys(TERMINAL, 0)
        self.next_due: int = 0
        """When the oldest task reaches its age."""

    def forget_old(self, now: int) -> None:
        """Forget the tasks that retention no longer keeps."""
        tasks, since = self.tasks, now - self._age_ms
        while tasks and (len(tasks) > self.most or tasks[0]._finished_ms < since):  # type: ignore[operator]
            self._keys.unbind(tasks.popleft())
        oldest = tasks[0]._finished_ms if tasks else now
        self.next_due = (oldest or now) + self._age_ms
