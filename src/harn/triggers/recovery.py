"""Signs of life, and events that dead processes left behind.

A process that dispatches writes a sign of life every ten seconds. A process that finds events of
its own triggers whose owner is gone takes them over where their dispatch stood.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from harn import topics
from harn.clock import resolve
from harn.storage import Store
from harn.storage.triggers import Orphan, keep_alive, leave, take_over
from harn.triggers.dispatch_state import Dispatch

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.triggers.registry import Triggers

logger = logging.getLogger("harn.triggers")

EVERY = 10.0
"""Seconds between two signs of life."""
AGAIN_AFTER = 1.0
MOST_IN_MEMORY = 20_000
"""Records kept of each of our topics when the log is in memory."""


class Recovery:
    """Looks after the inbox for a runtime's triggers; a store in memory needs none of it."""

    def __init__(self, runtime: Runtime, triggers: Triggers) -> None:
        self._runtime = runtime
        self._triggers = triggers
        self._store = runtime.service(Store)
        self._log = runtime.event_log
        self._running: asyncio.Task[None] | None = None
        self.recovered = 0

    def begin(self) -> None:
        """See to it that signs of life are given and orphans found."""
        if self._store.is_memory or self._running is not None or self._runtime.closing:
            return
        self._running = asyncio.ensure_future(self._keep_tending())
        self._runtime.own(self._running)

    async def _keep_tending(self) -> None:
        dispatcher = self._triggers.dispatcher
        seen = 0
        while True:
            try:
                if not self._triggers.by_hand:
                    await self.recover()
                if dispatcher.running or self._triggers.taken_in != seen:
                    seen = self._triggers.taken_in
                    await self._store.run(partial(keep_alive, dispatcher.owner))
                pause = EVERY
            except Exception as error:
                logger.warning("triggers could not be tended: %s", error)
                pause = AGAIN_AFTER
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            clock = self._runtime.clock
            timer = clock.call_at(
                clock.monotonic() + pause, partial(resolve, woken), background=True
            )
            try:
                await woken
            finally:
                timer.cancel()

    async def recover(self) -> int:
        """Take over what processes that are gone left behind; return how many events."""
        bindings = frozenset(binding.id for binding in self._triggers.active())
        if not bindings:
            return 0
        owner = self._triggers.dispatcher.owner
        found = await self._store.run(partial(take_over, owner, bindings))
        self.recovered += len(found)
        for orphan in found:
            await self._adopt(orphan)
        return len(found)

    async def take(self, envelope: int, binding_id: str) -> Dispatch | None:
        """Take one envelope over and start its dispatch; None if its owner is not gone."""
        owner, bindings = self._triggers.dispatcher.owner, frozenset((binding_id,))
        found = await self._store.run(partial(take_over, owner, bindings, only=envelope))
        self.recovered += len(found)
        self.begin()
        return await self._adopt(found[0]) if found else None

    async def _adopt(self, orphan: Orphan) -> Dispatch | None:
        found = await self._log.read(topics.TRIGGER_ENVELOPES, orphan.envelope - 1, 1)
        event = await self._triggers.dispatcher.event_of(orphan.envelope)
        if event is None or not found:
            logger.error("envelope %s cannot be read; its event is lost", orphan.envelope)
            return None
        binding = self._triggers.find(str(found[0].payload["trigger_id"]))
        if binding is None:
            return None
        told = found[0].payload
        dispatch = Dispatch(
            binding,
            event,
            orphan.envelope,
            replay_of=told.get("replay_of_event_id"),
            replay=told.get("replay", 0),
            attempt=orphan.attempt,
            due_ms=orphan.due_ms,
            taken=orphan.taken,
            came_with=found[0].headers,
        )
        self._triggers.dispatcher.start(dispatch)
        return dispatch

    async def bound_memory(self) -> None:
        """Keep our topics and what is known in memory within their bounds."""
        await self._store.run(partial(keep_alive, self._triggers.dispatcher.owner))
        for topic in (
            topics.TRIGGER_ENVELOPES,
            topics.TRIGGER_CLAIMS,
            topics.TRIGGER_OUTBOX,
            topics.TRIGGER_FLOW,
            topics.CHANNEL_AUDIT,
            topics.CRON_STATE,
        ):
            await self._log.trim(topic, keep=MOST_IN_MEMORY)

    async def leave(self) -> None:
        """Say that this process no longer dispatches: the rest may be taken over at once."""
        if not self._store.is_memory:
            await self._store.run(partial(leave, self._triggers.dispatcher.owner))
