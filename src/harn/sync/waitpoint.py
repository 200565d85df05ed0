"""Waitpoints: named moments that many wait for and one settles, once and for all.

In memory they live as long as their runtime. A runtime whose store is durable may bring a
`WaitpointStore`: then what was settled stays settled after a restart, and for other processes.
"""

from __future__ import annotations

from asyncio import get_running_loop
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption
from harn.runtime import Runtime, current_runtime
from harn.sync.waiters import GRANTED, Waiter, WaitQueue, guard, park

Status = Literal["completed", "cancelled", "timed_out"]

MOST_SETTLED = 100_000
"""Settled waitpoints that are remembered in memory; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class Waitpoint:
    """How a wait ended; *value* is what it was completed with, *reason* why it was cancelled."""

    status: Status
    value: Any = None
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set."""
        return {name: each for name, each in asdict(self).items() if each is not None}


class WaitpointStore(Protocol):
    """What a durable waitpoint needs of a store; register one with `Waitpoints.keep_in`."""

    async def settle(self, id: str, outcome: Waitpoint) -> bool:
        """Record *outcome* unless *id* is settled already; tells whether it did."""

    async def settled(self, id: str) -> Waitpoint | None:
        """Return how *id* was settled, or None."""

    async def watch(self, id: str) -> Waitpoint:
        """Wait until *id* is settled, here or in another process."""


class Waitpoints:
    """The waitpoints of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._settled: dict[str, Waitpoint] = {}
        self._waiting: dict[str, WaitQueue] = {}

    def settle(self, id: str, outcome: Waitpoint) -> bool:
        """Settle *id* and wake all who wait; false if that was done before."""
        with guard:
            if id in self._settled:
                return False
            self._settled[id] = outcome
            if len(self._settled) > MOST_SETTLED:
                del self._settled[next(iter(self._settled))]
            line = self._waiting.pop(id, None)
            while line is not None and (waiter := line.first()) is not None:
                line.popleft()
                waiter.on = outcome
                waiter.settle(GRANTED)
            return True

    async def wait(self, id: str, seconds: float | None, runtime: Runtime) -> Waitpoint:
        """Wait until *id* is settled, at most *seconds*."""
        with guard:
            if (found := self._settled.get(id)) is not None:
                return found
            if seconds == 0:
                return Waitpoint("timed_out")
            waiter = Waiter().wait_as("wait", None, get_running_loop())
            line = self._waiting.setdefault(id, WaitQueue())
            line.append(waiter)
        try:
            await park(waiter, seconds, runtime.clock)
        finally:
            with guard:
                outcome: Waitpoint | None = waiter.on
                if not waiter.withdraw():
                    self._leave(id, line)
        return Waitpoint("timed_out") if outcome is None else outcome

    def _leave(self, id: str, line: WaitQueue) -> None:
        line.note_left()
        if line.first() is None and self._waiting.get(id) is line:
            del self._waiting[id]


async def waitpoint_wait(id: str, timeout: Duration | None = None) -> Waitpoint:
    """Wait until *id* is completed or cancelled; at once if it was, `timed_out` after *timeout*.

    Cancelling leaves nothing behind.

    >>> import asyncio
    >>> async def main() -> Waitpoint:
    ...     await waitpoint_complete("connector.shutdown", "by hand")
    ...     return await waitpoint_wait("connector.shutdown", timeout="1h")
    >>> asyncio.run(main())
    Waitpoint(status='completed', value='by hand', reason=None)
    """
    seconds = None if timeout is None else to_seconds(timeout, "timeout")
    runtime = current_runtime()
    return await runtime.service(Waitpoints).wait(_checked(id), seconds, runtime)


async def waitpoint_complete(id: str, value: Any = None) -> bool:
    """Complete *id* with *value* and wake all who wait; false if it was settled before."""
    return current_runtime().service(Waitpoints).settle(_checked(id), Waitpoint("completed", value))


async def waitpoint_cancel(id: str, reason: str | None = None) -> bool:
    """Cancel *id* and wake all who wait; false if it was settled before."""
    outcome = Waitpoint("cancelled", reason=reason)
    return current_runtime().service(Waitpoints).settle(_checked(id), outcome)


def _checked(id: object) -> str:
    if not isinstance(id, str) or not id:
        raise InvalidOption("id", id, "a non-empty string")
    return id
