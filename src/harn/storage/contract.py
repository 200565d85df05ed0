"""What a store holds, and what an engine must be able to do.

An `Event` is a record of a topic as readers see it; a `Draft` is one on its way in, checked and
encoded. A `Driver` is an engine: it carries out operations, each in a transaction of its own, and
hints when another process may have written. Two statements have a meaning that engines know:
`TAKE_OFFSETS`, by which a topic grows, and `APPEND`, which stands for a whole append.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from harn.records import Record
from harn.storage.operations import Recipe

T = TypeVar("T")

Durability = Literal["full", "normal", "memory"]
"""`full` survives a power cut, `normal` a killed process and, after a second, a power cut; `memory`
has to survive neither."""

TAKE_OFFSETS = "take_offsets"
"""The statement that moves a topic's newest offset: an engine notes that the topic grows."""
APPEND = "append_events"
"""The statement for a whole append; without it, an append moves each topic and adds its records."""


class Event(Record, msgspec.Struct, frozen=True):
    """A record of the event log: *id* counts from 1 in each topic and never restarts.

    >>> Event(1, "news", "hello", {"a": 1}, {}, 0).as_dict()["kind"]
    'hello'
    """

    id: int
    topic: str
    kind: str
    payload: Any
    headers: dict[str, Any]
    occurred_at_ms: int


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A record on its way into the log; *at_ms* is set where it happened earlier than it lands."""

    topic: str
    kind: str
    payload: bytes
    headers: bytes
    at_ms: int | None = None


_topic_of: Callable[[Draft], str] = attrgetter("topic")
_payload_of: Callable[[Draft], bytes] = attrgetter("payload")


def topics_of(drafts: Sequence[Draft]) -> list[tuple[str, int, int]]:
    """Return the topics of *drafts* by name: how many records each gets, and the largest one."""
    counts = Counter(map(_topic_of, drafts))
    largest = max(map(len, map(_payload_of, drafts)))
    return [(topic, count, largest) for topic, count in sorted(counts.items())]


class Damaged(msgspec.Struct, frozen=True):
    """A record that cannot be read: where it is and what is wrong with it."""

    topic: str
    id: int | None
    reason: str
    position: int | None = None
    """Its byte position, for engines that keep files."""


class Hooks(msgspec.Struct, frozen=True):
    """The calls that an engine makes to its store, always on the event loop's thread."""

    appended: Callable[[frozenset[str]], None]
    """These topics have grown by an operation of this process."""
    hinted: Callable[[], None]
    """Another process may have written something."""
    awaits_hints: Callable[[], bool] = lambda: True
    """Whether a caller waits for that now; while none does, hints may be delayed."""


class Driver(Protocol):
    """An engine, opened for one runtime."""

    durability: Durability
    at_once: int
    """How many writing transactions can be under way together."""
    runs_here: bool
    """Whether `try_now` can do anything."""
    tells_marks: bool
    """Whether another mark of a topic wakes the callers that wait for the topic to grow."""

    def submit(
        self,
        recipe: Recipe[T],
        *,
        write: bool = True,
        durability: Durability | None = None,
        into: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Have the operation carried out in a transaction of its own; the answer is durable.

        It comes in a new future, or in the one given as *into*.
        Cancelling the future before the operation began means it did not happen; afterwards it
        runs to its end and only the answer is lost.
        """

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry a brief operation that grows no topic out on this thread, if nothing is slow now.

        None means that nothing has happened, and that `submit` is the way. It may overtake what
        was handed over before.
        """

    def watch(self, wanted: bool) -> None:
        """Begin, or stop, hinting at what other processes write."""

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return what differs after every later write of any process to *topics*, or to anything.

        None means that only a read can tell. Take it before reading.
        It costs a few microseconds, so that an idle reader need not ask a thread or a server.
        """

    async def check(self) -> list[str]:
        """Look for damage below the records, such as broken pages; return what was found."""

    async def aclose(self) -> None:
        """Finish what was handed over, then close files, threads and connections."""


@runtime_checkable
class OutboxDriver(Protocol):
    """An engine that can enqueue in a transaction of the caller's own."""

    async def put_in_outbox(self, connection: object, job: Mapping[str, Any]) -> str:
        """Put the columns of a job into the outbox on the caller's *connection*; return its ticket.

        Cancelling leaves the caller's transaction as its driver does.
        """


@runtime_checkable
class CopyingDriver(Protocol):
    """An engine that can copy its store while it is in use."""

    async def backup(self, target: Path) -> None:
        """Copy the store to the new file *target*."""
