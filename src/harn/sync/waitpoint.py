"""Waitpoints: named events that many callers wait for, and that one completes or cancels, once.

In memory they last as long as their runtime. In a runtime whose store is durable, each waitpoint
has its own topic in the event log, and the first record there is its outcome: it ends once, for
every process that uses the store, also after a restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from harn.current import current_runtime
from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption
from harn.graceful_stop import asked, raise_if_asked
from harn.records import SparseRecord
from harn.runtime import Runtime
from harn.sync.wait_queue import GONE, GRANTED, Waiter, WaitQueue, guard, park
from harn.topics import waitpoint_topic

Status = Literal["completed", "cancelled", "timed_out"]

MOST_ENDED = 100_000
"""The most ended waitpoints that are kept in memory; the oldest is dropped first."""


@dataclass(frozen=True, slots=True)
class Waitpoint(SparseRecord):
    """The result of a wait; *value* is that of the completion, *reason* that of the cancel.

    >>> async def main() -> Waitpoint:
    ...     return await waitpoint_wait("approval", timeout="1ms")
    >>> asyncio.run(main())
    Waitpoint(status='timed_out', value=None, reason=None)
    """

    status: Status
    value: Any = None
    reason: str | None = None


class Waitpoints:
    """The waitpoints of one runtime, and the outcomes it has read from its store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._is_durable = not runtime.storage_url.startswith("memory:")
        self._ended: dict[str, Waitpoint] = {}
        self._waiting: dict[str, WaitQueue[Waiter]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    async def end(self, id: str, outcome: Waitpoint) -> bool:
        """Complete or cancel *id* and wake every waiter; false if it had ended before."""
        if self._is_durable:
            if await self._look_up(id) is not None:
                return False
            event = await self._runtime.event_log.emit(
                waitpoint_topic(id), outcome.status, _record(id, outcome)
            )
            if event.id != 1:
                return False  # another process wrote the first record, which is the outcome
            outcome = _outcome(event)
        return self.end_here(id, outcome)

    def end_here(self, id: str, outcome: Waitpoint) -> bool:
        """Keep the outcome of *id*, and wake its waiters in this process."""
        with guard:
            if id in self._ended:
                return self._is_durable  # a watcher read this very outcome from the log first
            self._ended[id] = outcome
            if len(self._ended) > MOST_ENDED:
                del self._ended[next(iter(self._ended))]
            waiters = self._waiting.pop(id, None)
            while waiters is not None and (waiter := waiters.first()) is not None:
                waiters.popleft()
                waiter.on = outcome
                waiter.wake(GRANTED)
            return True

    async def wait(self, id: str, seconds: float | None) -> Waitpoint:
        """Wait until *id* ends, at most *seconds*. Cancelling changes nothing for other waiters."""
        found = self._ended.get(id)
        if found is None and self._is_durable and seconds == 0:
            found = await self._look_up(id)
        with guard:
            if found is None:
                found = self._ended.get(id)
            if found is not None:
                return found
            if seconds == 0:
                return Waitpoint("timed_out")
            waiter = Waiter().wait_as("wait", None, asyncio.get_running_loop())
            waiters = self._waiting.setdefault(id, WaitQueue())
            waiters.append(waiter)
        if self._is_durable and id not in self._watchers:
            self._watch(id)
        try:
            await park(waiter, seconds, self._runtime.clock)
        finally:
            with guard:
                outcome: Waitpoint | None = waiter.on
                if not waiter.withdraw():
                    self._leave(id, waiters)
        return Waitpoint("timed_out") if outcome is None else outcome

    def _leave(self, id: str, waiters: WaitQueue[Waiter]) -> None:
        waiters.note_left()
        if waiters.first() is None and self._waiting.get(id) is waiters:
            del self._waiting[id]
            if (watcher := self._watchers.get(id)) is not None:
                watcher.cancel()

    async def _look_up(self, id: str) -> Waitpoint | None:
        if (known := self._ended.get(id)) is not None:
            return known
        found = await self._runtime.event_log.read(waitpoint_topic(id), limit=1)
        if not found:
            return None
        self.end_here(id, _outcome(found[0]))
        return _outcome(found[0])

    def _watch(self, id: str) -> None:
        watcher = asyncio.ensure_future(self._follow(id))
        self._watchers[id] = watcher
        self._runtime.own(watcher)
        watcher.add_done_callback(lambda _: self._watched(id, watcher))

    async def _follow(self, id: str) -> None:
        async for event in self._runtime.event_log.subscribe(waitpoint_topic(id), after=0):
            self.end_here(id, _outcome(event))
            return

    def _watched(self, id: str, watcher: asyncio.Task[None]) -> None:
        if self._watchers.get(id) is watcher:
            del self._watchers[id]
        error = None if watcher.cancelled() else watcher.exception()
        with guard:
            waiters = self._waiting.get(id)
            if waiters is None or id in self._watchers or self._runtime.closing:
                return
            if error is None:
                self._watch(id)  # a new waiter came while the last one left
                return
            while (waiter := waiters.first()) is not None:
                waiters.popleft()
                waiter.state = GONE
                waiter.future.set_exception(error)


def _record(id: str, outcome: Waitpoint) -> dict[str, Any]:
    return {"id": id, "value": outcome.value, "reason": outcome.reason}


def _outcome(event: Any) -> Waitpoint:
    return Waitpoint(event.kind, event.payload.get("value"), event.payload.get("reason"))


async def waitpoint_wait(id: str, timeout: Duration | None = None) -> Waitpoint:
    """Wait until *id* is completed or cancelled; the status is `timed_out` after *timeout*.

    Returns at once if it has ended before. Cancelling stops waiting and changes nothing else.

    >>> async def main() -> Waitpoint:
    ...     await waitpoint_complete("connector.shutdown", "by hand")
    ...     return await waitpoint_wait("connector.shutdown", timeout="1h")
    >>> asyncio.run(main())
    Waitpoint(status='completed', value='by hand', reason=None)
    """
    seconds = None if timeout is None else to_seconds(timeout, "timeout")
    if asked:
        raise_if_asked()
    return await current_runtime().service(Waitpoints).wait(_checked(id), seconds)


async def waitpoint_complete(id: str, value: Any = None) -> bool:
    """Complete *id* with *value* and wake every waiter; false if it had ended before.

    With a durable store *value* must be JSON, and it is durable when this returns. Cancelling may
    be too late to prevent it.

    >>> async def main() -> tuple[bool, bool]:
    ...     first = await waitpoint_complete("approval", {"by": "ann"})
    ...     return first, await waitpoint_complete("approval", {"by": "ben"})
    >>> asyncio.run(main())
    (True, False)
    """
    service = current_runtime().service(Waitpoints)
    return await service.end(_checked(id), Waitpoint("completed", value))


async def waitpoint_cancel(id: str, reason: str | None = None) -> bool:
    """Cancel *id* and wake every waiter; false if it had ended before.

    With a durable store it is durable when this returns. Cancelling may be too late to prevent it.

    >>> async def main() -> Waitpoint:
    ...     await waitpoint_cancel("approval", "the order was withdrawn")
    ...     return await waitpoint_wait("approval")
    >>> asyncio.run(main())
    Waitpoint(status='cancelled', value=None, reason='the order was withdrawn')
    """
    if reason is not None and not isinstance(reason, str):
        raise InvalidOption("reason", reason, "a string, or None")
    service = current_runtime().service(Waitpoints)
    return await service.end(_checked(id), Waitpoint("cancelled", reason=reason))


def _checked(id: object) -> str:
    if not isinstance(id, str) or not id:
        raise InvalidOption("id", id, "a non-empty string")
    return id
