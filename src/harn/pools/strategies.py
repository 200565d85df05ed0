"""Which queued task goes next: fifo, priority, lifo, fair_round_robin. Pure queues.

A `Strategy` is what the caller chose, as data; `Strategy.queue()` makes the queue that does it.
`push` and `pop` take constant time (with *priority*, a heap of the distinct priorities is touched
when one of them comes or goes) and do not touch the task itself, which may long have left the
processor's cache.

A task that is cancelled or evicted is only noted; `pop` passes it over, and once those that have
left outnumber the waiting ones they are swept out, so garbage is bounded and removal costs O(1)
on average.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, get_args

from harn.errors import InvalidOption, did_you_mean

StrategyKind = Literal["fifo", "priority", "lifo", "fair_round_robin"]
KINDS: tuple[str, ...] = get_args(StrategyKind)

SLACK = 64
"""Tasks that have left early, and that a queue may hold before it looks whether to sweep."""


class Queued(Protocol):
    """What a queue needs of a task: its rank, its partition, and a slot of the queue's own."""

    priority: int
    partition: str | None
    next: Any


T = TypeVar("T", bound=Queued)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A queue strategy as the caller chose it; *key* names the fair queue's partition field."""

    kind: StrategyKind
    key: str | None = None

    def queue(self) -> Queue[Any]:
        """Make an empty queue of this kind."""
        return _QUEUES[self.kind]()

    def as_dict(self) -> dict[str, Any]:
        """Return the strategy, JSON-ready."""
        shown = {"_type": "queue_strategy", "kind": self.kind}
        return shown if self.key is None else {**shown, "key": self.key}


def fifo() -> Strategy:
    """Take the oldest queued task first, whatever its priority.

    >>> fifo().kind
    'fifo'
    """
    return Strategy("fifo")


def priority() -> Strategy:
    """Take the highest priority first; equal ones stay in order. The default.

    >>> priority().kind
    'priority'
    """
    return Strategy("priority")


def lifo() -> Strategy:
    """Take the newest queued task first.

    >>> lifo().kind
    'lifo'
    """
    return Strategy("lifo")


def fair_round_robin(key: str = "key") -> Strategy:
    """Take one task of each partition in turn; the submit option named *key* is the partition.

    Partitions rotate in the order of their first arrival; one that runs empty leaves, and comes
    back at the end. Submits without the field fall back to `key`, and those without either share
    one partition that no key can name.

    >>> fair_round_robin("tenant_id").key
    'tenant_id'
    """
    if not isinstance(key, str) or not key or key in ("priority", "idempotency_key"):
        raise InvalidOption("key", key, "the name of a label, or 'key'")
    return Strategy("fair_round_robin", key)


class QueueStrategy:
    """The four strategies under one name.

    >>> QueueStrategy().fair_round_robin("tenant_id") == fair_round_robin("tenant_id")
    True
    """

    fifo = staticmethod(fifo)
    priority = staticmethod(priority)
    lifo = staticmethod(lifo)
    fair_round_robin = staticmethod(fair_round_robin)


_FACTORIES: dict[str, Callable[..., Strategy]] = {
    "fifo": fifo,
    "priority": priority,
    "lifo": lifo,
    "fair_round_robin": fair_round_robin,
}


def read_strategy(value: object) -> Strategy:
    """Read the option *queue*: a `Strategy`, its name, its factory, or a mapping with `kind`."""
    if value is None:
        return priority()
    if isinstance(value, Strategy):
        return value
    if isinstance(value, str):
        if value in _FACTORIES:
            return _FACTORIES[value]()
        raise _unknown(value)
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if value in _FACTORIES.values():
        return value()  # type: ignore[operator,no-any-return]
    raise _unknown(value)


def _from_mapping(value: Mapping[str, Any]) -> Strategy:
    kind = value.get("kind", value.get("strategy"))
    if kind not in _FACTORIES:
        raise _unknown(value if kind is None else kind)
    known = {"_type", "kind", "strategy"}
    if kind == "fair_round_robin":
        known |= {"key", "key_field"}
    for name in value:
        if name not in known:
            raise InvalidOption(f"queue.{name}", value[name], "no such key" + _near(name, known))
    if kind == "fair_round_robin":
        return fair_round_robin(value.get("key", value.get("key_field", "key")))
    return _FACTORIES[kind]()


def _unknown(value: object) -> InvalidOption:
    near = _near(value, KINDS) if isinstance(value, str) else ""
    return InvalidOption("queue", value, f"one of {', '.join(KINDS)}{near}")


def _near(name: object, known: Iterable[str]) -> str:
    return did_you_mean(name, known)


class Queue(Generic[T]):
    """Tasks that wait, and which of them goes next."""

    __slots__ = ("_left", "live")

    def __init__(self) -> None:
        self.live = 0
        """How many wait."""
        self._left: set[T] = set()
        """Those that have left early and still stand in a line."""

    def __len__(self) -> int:
        return self.live

    def __iter__(self) -> Iterator[T]:
        """Yield those that wait, in no particular order."""
        for line in self._all_lines():
            yield from (task for task in line if task not in self._left)

    def push(self, task: T) -> None:
        """Add *task*."""
        raise NotImplementedError

    def pop(self) -> T | None:
        """Remove and return the task that goes next; None when nobody waits."""
        raise NotImplementedError

    def discard(self, task: T) -> None:
        """Take *task*, which must be waiting here, out of its turn."""
        self.live -= 1
        self._left.add(task)
        self._left_early(task)
        self._sweep_if_due(self.live)

    def _has_left(self, task: T) -> bool:
        """Tell whether *task*, just taken from its line, has left before; forget it if so."""
        if task not in self._left:
            self._sweep_if_due(self.live - 1)
            return False
        self._left.remove(task)
        return True

    def _sweep_if_due(self, waiting: int) -> None:
        if len(self._left) > waiting + SLACK:
            self._sweep()
            self._left.clear()

    def _all_lines(self) -> Iterable[Iterable[T]]:
        raise NotImplementedError

    def _left_early(self, task: T) -> None:
        """Look whether more than *task* itself has to leave."""

    def _sweep(self) -> None:
        """Drop every task that has left."""
        raise NotImplementedError


class Fifo(Queue[T]):
    """One line; first in, first out."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        super().__init__()
        self._line: deque[T] = deque()

    def push(self, task: T) -> None:
        self._line.append(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            task = self._line.popleft()
            if self._left and self._has_left(task):
                continue
            self.live -= 1
            return task
        return None

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return (self._line,)

    def _sweep(self) -> None:
        self._line = deque(self)


class Lifo(Queue[T]):
    """One line; last in, first out."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        super().__init__()
        self._line: list[T] = []

    def push(self, task: T) -> None:
        self._line.append(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            task = self._line.pop()
            if self._left and self._has_left(task):
                continue
            self.live -= 1
            return task
        return None

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return (self._line,)

    def _sweep(self) -> None:
        self._line = list(self)


class Priority(Queue[T]):
    """A line for each distinct priority, a heap of those, and the best line at hand."""

    __slots__ = ("_heap", "_lines", "_top")

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
            if self._left and self._has_left(task):
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
        left, lines = self._left, self._lines.items()
        kept = {rank: deque(task for task in line if task not in left) for rank, line in lines}
        self._lines = {rank: line for rank, line in kept.items() if line}
        self._heap = sorted(self._lines)
        self._top = self._lines[self._heap[0]] if self._heap else deque()


class Line(Generic[T]):
    """The tasks of one partition, a list that runs through the tasks themselves.

    A hundred thousand partitions of a few tasks are ordinary: a deque for each would cost more
    than its tasks, and be out of the processor's cache whenever its turn comes.
    """

    __slots__ = ("head", "key", "live", "tail")

    def __init__(self, key: str | None) -> None:
        self.key = key
        self.head: T | None = None
        self.tail: T | None = None
        self.live = 0
        """How many of them wait; the others have left early."""

    def push(self, task: T) -> None:
        """Add *task* at the end."""
        if self.tail is None:
            self.head = task
        else:
            self.tail.next = task
        self.tail = task
        self.live += 1

    def take(self) -> T:
        """Remove and return the first, whether it waits or not. There must be one."""
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


class FairRoundRobin(Queue[T]):
    """A line for each partition, and the rotation in which they take turns.

    A line whose last task left early is dead: it stays in the rotation until its turn or the
    next sweep, and a newer line may carry its key.
    """

    __slots__ = ("_lines", "_rotation")

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str | None, Line[T]] = {}
        self._rotation: deque[Line[T]] = deque()

    def push(self, task: T) -> None:
        line = self._lines.get(task.partition)
        if line is None:
            line = self._lines[task.partition] = Line(task.partition)
            self._rotation.append(line)
        line.push(task)
        self.live += 1

    def pop(self) -> T | None:
        while self.live:
            line = self._rotation.popleft()
            if not line.live:
                self._bury(line)
                continue
            task = line.take()
            while self._left and task in self._left:
                self._left.remove(task)
                task = line.take()
            self.live -= 1
            line.live -= 1
            if line.live:
                self._rotation.append(line)
            else:
                del self._lines[line.key]
                self._bury(line)
            if self._left:
                self._sweep_if_due(self.live)
            return task
        return None

    def _bury(self, line: Line[T]) -> None:
        while line.head is not None:
            self._left.discard(line.take())

    def _all_lines(self) -> Iterable[Iterable[T]]:
        return self._lines.values()

    def _left_early(self, task: T) -> None:
        line = self._lines[task.partition]
        line.live -= 1
        if not line.live:
            del self._lines[task.partition]

    def _sweep(self) -> None:
        """Make every line anew."""
        old, self._rotation = self._rotation, deque()
        for line in old:
            kept: Line[T] = Line(line.key)
            while line.head is not None:
                task = line.take()
                if task not in self._left:
                    kept.push(task)
            if kept.live:
                self._rotation.append(kept)
        self._lines = {line.key: line for line in self._rotation}


_QUEUES: dict[str, Callable[[], Queue[Any]]] = {
    "fifo": Fifo,
    "lifo": Lifo,
    "priority": Priority,
    "fair_round_robin": FairRoundRobin,
}
