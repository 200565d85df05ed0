"""Which queued task a full queue evicts.

A policy that evicts needs an order of arrival beside the queue's own order: `Oldest` or `Longest`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol

from harn.pools.task_queues import T, TaskQueue


class EvictingQueue(Generic[T]):
    """A queue that also knows which of its tasks a full queue evicts."""

    __slots__ = ("_arrivals", "_queue", "live")

    def __init__(self, queue: TaskQueue[T], arrivals: Arrivals[T]) -> None:
        self._queue = queue
        self._arrivals = arrivals
        self.live: int = 0

    def __len__(self) -> int:
        return self.live

    def __iter__(self) -> Iterator[T]:
        return iter(self._queue)

    def push(self, task: T) -> None:
        self._queue.push(task)
        self._arrivals.add(task)
        self.live += 1

    def pop(self) -> T | None:
        task = self._queue.pop()
        if task is not None:
            self._arrivals.discard(task)
            self.live -= 1
        return task

    def discard(self, task: T) -> None:
        self._queue.discard(task)
        self._arrivals.discard(task)
        self.live -= 1

    def victim(self, newcomer: str | None) -> T:
        """Return the task that a new one of partition *newcomer* evicts. There must be one."""
        return self._arrivals.victim(newcomer)


class Arrivals(Protocol[T]):
    """Queued tasks in an order of their own, to find the one to evict."""

    def add(self, task: T) -> None:
        """Note that *task* was queued."""

    def discard(self, task: T) -> None:
        """Note that *task* left the queue."""

    def victim(self, newcomer: str | None) -> T:
        """Return the task that a new one of partition *newcomer* evicts. There must be one."""


class Oldest(Generic[T]):
    """Every queued task, oldest first.

    A plain dict would skip all its deleted entries again each time it is asked for the first.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[T, None] = OrderedDict()

    def add(self, task: T) -> None:
        self._tasks[task] = None

    def discard(self, task: T) -> None:
        self._tasks.pop(task, None)

    def victim(self, newcomer: str | None) -> T:
        return next(iter(self._tasks))


class Longest(Generic[T]):
    """Queued tasks by partition, and the partitions by their length.

    A length changes by one at a time. So a shelf for each length, and the number of the highest
    shelf, lead to the longest partition without a search.
    """

    def __init__(self) -> None:
        self._lines: dict[str | None, OrderedDict[T, None]] = {}
        self._shelves: dict[int, OrderedDict[str | None, None]] = {0: OrderedDict()}
        self._longest = 0

    def add(self, task: T) -> None:
        line = self._lines.setdefault(task.partition, OrderedDict())
        line[task] = None
        self._move(task.partition, len(line) - 1, len(line))
        self._longest = max(self._longest, len(line))

    def discard(self, task: T) -> None:
        line = self._lines.get(task.partition)
        if line is None or task not in line:
            return
        del line[task]
        self._move(task.partition, len(line) + 1, len(line))
        if self._longest not in self._shelves:
            self._longest -= 1
        if not line:
            del self._lines[task.partition]

    def victim(self, newcomer: str | None) -> T:
        """Return the oldest task of the longest partition; of equal ones, the newcomer's own."""
        if len(self._lines.get(newcomer, ())) == self._longest:
            return next(iter(self._lines[newcomer]))
        return next(iter(self._lines[next(iter(self._shelves[self._longest]))]))

    def _move(self, partition: str | None, before: int, after: int) -> None:
        if before:
            shelf = self._shelves[before]
            del shelf[partition]
            if not shelf:
                del self._shelves[before]
        if after:
            self._shelves.setdefault(after, OrderedDict())[partition] = None
