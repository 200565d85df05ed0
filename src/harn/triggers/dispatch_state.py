"""The state of one event's dispatch to one binding, and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from harn.clock import resolve
from harn.context import Task
from harn.errors import HarnError
from harn.pools import Caused, current_caused
from harn.records import SparseRecord
from harn.triggers.binding import Binding
from harn.triggers.delivery import delivery_key
from harn.triggers.event import TriggerEvent
from harn.workers import Failure

Status = Literal["succeeded", "failed", "dlq", "skipped", "cancelled"]
Shown = Literal["dispatched", "failed", "dlq", "waiting", "cancelled"]


@dataclass(frozen=True, slots=True)
class DispatchHandle(SparseRecord):
    """The outcome of a dispatch, or its state so far.

    *status* is `dispatched` (the handler succeeded, or a gate skipped the event: see *result*),
    `dlq`, `failed` or `cancelled`. It is `waiting` while the event waits at a gate or for a retry,
    or while its handler runs; then `wait()` returns the final handle.

    >>> import harn
    >>> async def main() -> tuple[str, str]:
    ...     await harn.trigger_register(
    ...         id="t", kind="channel.emit", provider="channel", match={},
    ...         handler=lambda event: "seen")
    ...     handle = await harn.trigger_fire("t")
    ...     return handle.status, handle.result
    >>> harn.run(main)
    ('dispatched', 'seen')
    """

    event_id: str
    binding_id: str
    binding_version: int
    status: Shown
    result: Any = None
    error: str | None = None
    dlq_entry_id: str | None = None
    replay_of_event_id: str | None = None
    _dispatch: Dispatch | None = field(default=None, repr=False, compare=False)

    async def wait(self) -> DispatchHandle:
        """Wait for the end and return the final handle. Cancelling leaves the dispatch alone."""
        return self if self._dispatch is None else await self._dispatch.wait()


class Outcome(msgspec.Struct, frozen=True):
    """How a dispatch ended."""

    status: Status
    attempt_count: int = 0
    result: Any = None
    error: str | None = None
    dlq_entry_id: str | None = None
    skip: str | None = None
    history: tuple[dict[str, Any], ...] = ()
    failure: Failure | None = None
    """What the last attempt raised, without secrets."""


class Dispatch:
    """The dispatch of one event to one binding."""

    def __init__(
        self,
        binding: Binding,
        event: TriggerEvent,
        envelope: int,
        *,
        replay_of: str | None = None,
        replay: int = 0,
        attempt: int = 1,
        due_ms: int = 0,
        taken: int = 1,
        known: bool = False,
        came_with: Mapping[str, Any] | None = None,
    ) -> None:
        self.binding = binding
        self.event = event
        self.envelope = envelope
        self.replay_of = replay_of
        self.replay = replay
        self.attempt = attempt
        self.due_ms = due_ms
        self.taken = taken
        self.came_with: Mapping[str, Any] = came_with or {}
        """The headers of its envelope, which name the trace it is part of."""
        self.caused_by: Caused | None = current_caused()
        """The work that emitted its event, if a caller waits for that work."""
        self.outcome: Outcome | None = None
        if known:
            self.outcome = Outcome("skipped", skip="duplicate")
        self.is_parked: bool = False
        self.task: Task | None = None
        """The task that runs it, once it has begun."""
        self._watchers: list[asyncio.Future[None]] = []
        self._loop = asyncio._get_running_loop()

    @property
    def delivery(self) -> str:
        """The delivery's name: the same for every attempt, also after a crash; new for a replay."""
        return delivery_key(self.binding.id, self.replay_of or self.event.id, self.replay)

    def park(self) -> None:
        """Note that the dispatch waits at a gate or for a retry."""
        self.is_parked = True
        self._wake_watchers()

    def unpark(self) -> None:
        """Note that its handler is called: it no longer waits."""
        self.is_parked = False

    def end(self, outcome: Outcome) -> None:
        """Note how it ended, and wake its waiters."""
        self.outcome = outcome
        self._wake_watchers()

    async def wait(self) -> DispatchHandle:
        """Wait for the end. Cancelling leaves the dispatch alone."""
        while self.outcome is None:
            await self.next_change()
        return self.handle()

    async def wait_or_park(self) -> None:
        """Wait until it has ended or is parked. Cancelling leaves it alone."""
        while self.outcome is None and not self.is_parked:
            await self.next_change()

    def handle(self) -> DispatchHandle:
        """Return its state now."""
        outcome = self.outcome
        shown: Shown = "waiting"
        if outcome is not None:
            done = outcome.status in ("succeeded", "skipped")
            shown = "dispatched" if done else outcome.status  # type: ignore[assignment]
        return DispatchHandle(
            self.event.id,
            self.binding.id,
            self.binding.version,
            shown,
            None if outcome is None else shown_result(outcome),
            None if outcome is None else outcome.error,
            None if outcome is None else outcome.dlq_entry_id,
            self.replay_of,
            self if outcome is None else None,
        )

    async def next_change(self) -> None:
        """Wait until it ends or is parked. Cancelling leaves it alone."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            raise HarnError(
                f"event {self.event.id} is dispatched on another event loop; wait for it through "
                "from_thread(handle.wait)"
            )
        change: asyncio.Future[None] = loop.create_future()
        self._watchers.append(change)
        await change

    def _wake_watchers(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            resolve(watcher)


def shown_result(outcome: Outcome) -> Any:
    """Return what a handle and the outbox show as the result."""
    if outcome.status == "skipped":
        return {"skipped": True, "flow_control": outcome.skip}
    return outcome.result
