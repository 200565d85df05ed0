"""The durable work that a task belongs to: the job, or the task of a lasting pool.

It is stored in `Task.durable` and nowhere else: a queue's consumer sets it for a job, and a pool
with a journal for a durable call. Tasks that the work starts find it through their parents.
`step` records in it what is done, so that a later attempt does not do it again; the room `state`
needs nothing else of queues and pools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from harn.current import current_frame

if TYPE_CHECKING:
    from harn.context import Task

SEPARATOR = "\x1f"
"""Stands between the parts of a nested step's name; no name can hold it."""


class StepRecord(msgspec.Struct, frozen=True):
    """A step that was carried out: its name, and its result as JSON."""

    name: str
    """The name; inside another step `nested_name` of both."""
    number: int
    """How often the name was used before in the attempt."""
    call: str
    """The function, and a digest of its arguments."""
    result: bytes
    started_at_ms: int
    duration_ms: int


class DurableWork(Protocol):
    """One attempt at a job or at a durable pool task."""

    steps: Any
    """The steps of this attempt, where `state` keeps them; None until the first one."""
    used_tokens: int
    """The tokens that model calls of this attempt have used."""

    @property
    def title(self) -> str:
        """What this is, for a message: `job 7 of queue 'reviews'`."""

    async def recorded_steps(self) -> Sequence[StepRecord]:
        """Return the steps that earlier attempts recorded."""

    def record_step(self, step: StepRecord) -> Awaitable[None]:
        """Record *step*; `ClaimLost` if this attempt no longer holds the work.

        It is durable when this returns. Cancelling does not prevent it.
        """


def durable_work() -> DurableWork | None:
    """Return the durable work that the calling task belongs to; None if there is none."""
    return durable_work_of(current_frame().task)


def durable_work_of(task: Task) -> DurableWork | None:
    """Return the durable work that *task* belongs to; None if there is none."""
    while task is not None:
        if task.durable is not None:
            return task.durable
        task = task.parent  # type: ignore[assignment]
    return None


def nested_name(outer: str, number: int, name: str) -> str:
    """Return the name of the step *name* inside the step *outer*, used for the *number*th time.

    An outer step that was recorded does not run, so what is inside it must not count elsewhere.
    """
    return SEPARATOR.join((outer, str(number), name))


def shown_step(name: str) -> str:
    """Return a step's name for people.

    >>> shown_step("fetch"), shown_step(nested_name("fetch", 0, "parse"))
    ('fetch', 'fetch > parse')
    """
    return " > ".join(name.split(SEPARATOR)[::2])
