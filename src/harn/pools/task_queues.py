"""The queues of a pool: fifo, priority, lifo, fair_round_robin.

`push` and `pop` take constant time (with *priority*, a heap of the distinct priorities changes
when one of them comes or goes). They do not touch the task itself, which may have left the
processor's cache long ago.

A task that is cancelled or evicted is only noted as departed. `pop` skips it. Once the departed
outnumber the waiting tasks they are swept out, so garbage is bounded and removal takes constant
time on average.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

SWEEP_AFTER = 64
"""Departed tasks that a queue may hold beyond its waiting ones before it sweeps them out."""


class Queued(Protocol):
    """What a queue needs of a task: its priority, its partition, and a link for the queue's use."""

    priority: int
    partition: str | None
    next: Any


T = TypeVar("T", bound=Queued)


class TaskQueue(Protocol[T]):
    """Tasks that wait, and which of them is next."""

    live: int
    """How many tasks wait."""

    def __len__(self) -> int:
        """Return how many tasks wait."""

    def __iter__(self) -> Iterator[T]:
        """Yield the waiting tasks, in no particular order."""

    def push(self, task: T) -> None:
        """Add *task*."""

    def pop(self) -> T | None:
        """Remove and return the next task; None if none waits."""

    def discard(self, task: T) -> None:
        """Remove *task*, which must be waiting here, before its turn."""


class SweptQueue(Generic[T]):
    """A `TaskQueue` that only notes a discarded task, and sweeps such tasks out later."""

    __slots__ = ("_departed", "live")

    def __init__(self) -> None:
        self.live: int = 0
        self._departed: set[T] = set()
        """Tasks that left before their turn and still stand in a line."""

    def __len__(self) -> int:
        return self.live

    def __iter__(self) -> Iterator[T]:
        for line in self._all_lines():
            yield from (task for task in line if task not in self._departed)

    def discard(self, task: T) -> None:
        self.live -= 1
        self._departed.add(task)
        self._note_departed(task)
        self._sweep_if_due(self.live)

    def _had_departed(self, task: T) -> bool:
        """Tell whether *task*, just taken from its line, had departed; forget it if so."""
        if task not in self._departed:
            self._sweep_if_due(self.live - 1)
            return False
        self._departed.remove(task)
        return True

    def _sweep_if_due(self, waiting: int) -> None:
        if len(self._departed) > waiting + SWEEP_AFTER:
            self._sweep()
            self._departed.clear()

    def _all_lines(self) -> Iterable[Iterable[T]]:
        raise NotImplementedError

    def _note_departed(self, task: T) -> None:
        """Adjust what the queue counts about *task*'s line."""

    def _sweep(self) -> None:
        """Drop every departed task from its line."""
        raise NotImplementedError


class Fifo(SweptQueue[T]):
    """One line; first in, first out."""

    __slots__ = ("_line",)

    live: int

    def __init__(self) -> None:
        super().__init__()
        self._line: deque[T] = deque()

    def push(self, task: T) -> None:
        self._line.append(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            task = self._line.popleft()
            if self._departed and self._had_departed(task):
                continue
            self.live -= 1
            return task
        return None

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return (self._line,)

    def _sweep(self) -> None:
        self._line = deque(self)


class Lifo(SweptQueue[T]):
    """One line; last in, first out."""

    __slots__ = ("_line",)

    live: int

    def __init__(self) -> None:
        super().__init__()
        self._line: list[T] = []

    def push(self, task: T) -> None:
        self._line.append(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            task = self._line.pop()
            if self._departed and self._had_departed(task):
                continue
            self.live -= 1
            return task
        return None

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return (self._line,)

    def _sweep(self) -> None:
        self._line = list(self)


class Priority(SweptQueue[T]):
    """A line for each distinct priority, a heap of those, and the best line at hand."""

    __slots__ = ("_heap", "_lines", "_top")

    live: int

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[int, deque[T]] = {}
        self._heap: list[int] = []
        self._top: deque[T] = deque()

    def push(self, task: T) -> None:
        rank = -task.priority
        line = self._lines.get(rank)
        if line is None:
            line = self._lines[rank] = deque()
            heapq.heappush(self._heap, rank)
            self._top = self._lines[self._heap[0]]
        line.append(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            line = self._top
            if not line:
                self._drop_top()
                continue
            task = line.popleft()
            if self._departed and self._had_departed(task):
                continue
            self.live -= 1
            return task
        return None

    def _drop_top(self) -> None:
        del self._lines[heapq.heappop(self._heap)]
        self._top = self._lines[self._heap[0]] if self._heap else deque()

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return self._lines.values()

    def _sweep(self) -> None:
        departed, lines = self._departed, self._lines.items()
        kept = {rank: deque(task for task in line if task not in departed) for rank, line in lines}
        self._lines = {rank: line for rank, line in kept.items() if line}
        self._heap = sorted(self._lines)
        self._top = self._lines[self._heap[0]] if self._heap else deque()


class Partition(Generic[T]):
    """The tasks of one partition, as a list linked through the tasks themselves.

    A hundred thousand partitions of a few tasks are ordinary. A deque for each would take more
    memory than its tasks, and be out of the processor's cache whenever its turn comes.
    """

    __slots__ = ("head", "key", "live", "tail")

    def __init__(self, key: str | None) -> None:
        self.key: str | None = key
        self.head: T | None = None
        self.tail: T | None = None
        self.live: int = 0
        """How many of them wait; the others have departed."""

    def push(self, task: T) -> None:
        """Add *task* at the end."""
        if self.tail is None:
            self.head = task
        else:
            self.tail.next = task
        self.tail = task
        self.live += 1

    def take(self) -> T:
        """Remove and return the first task, waiting or departed. There must be one."""
        task = self.head
        self.head = following = task.next  # type: ignore[union-attr]
        if following is None:
            self.tail = None
        else:
            task.next = None  # type: ignore[union-attr]
        return task  # type: ignore[return-value]

    def __iter__(self) -> Iterator[T]:
        task = self.head
        while task is not None:
            yield task
            task = task.next


class FairRoundRobin(SweptQueue[T]):
    """The partitions, and the rotation in which they take turns.

    A partition whose last task departed is dead: it stays in the rotation until its turn or the
    next sweep. By then a newer partition may carry its key.
    """

    __slots__ = ("_partitions", "_rotation")

    live: int

    def __init__(self) -> None:
        super().__init__()
        self._partitions: dict[str | None, Partition[T]] = {}
        self._rotation: deque[Partition[T]] = deque()

    def push(self, task: T) -> None:
        partition = self._partitions.get(task.partition)
        if partition is None:
            partition = self._partitions[task.partition] = Partition(task.partition)
            self._rotation.append(partition)
        partition.push(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            partition = self._rotation.popleft()
            if not partition.live:
                self._forget(partition)
                continue
            task = partition.take()
            while self._departed and task in self._departed:
                self._departed.remove(task)
                task = partition.take()
            self.live -= 1
            partition.live -= 1
            if partition.live:
                self._rotation.append(partition)
            else:
                del self._partitions[partition.key]
                self._forget(partition)
            if self._departed:
                self._sweep_if_due(self.live)
            return task
        return None

    def _forget(self, partition: Partition[T]) -> None:
        while partition.head is not None:
            self._departed.discard(partition.take())

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return self._partitions.values()

    def _note_departed(self, task: T) -> None:
        partition = self._partitions[task.partition]
        partition.live -= 1
        if not partition.live:
            del self._partitions[task.partition]

    def _sweep(self) -> None:
        """Build every partition again, without its departed tasks."""
        old, self._rotation = self._rotation, deque()
        for partition in old:
            kept: Partition[T] = Partition(partition.key)
            while partition.head is not None:
                task = partition.take()
                if task not in self._departed:
                    kept.push(task)
            if kept.live:
                self._rotation.append(kept)
        self._partitions = {partition.key: partition for partition in self._rotation}
