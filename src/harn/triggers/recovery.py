"""Signs of life, and events that dead processes left behind.

A process that dispatches writes a sign of life every ten seconds, on the heartbeat's thread: a
handler that blocks the loop does not make the process look dead. A process that finds events of its
own triggers whose owner is gone takes them over where their dispatch stood.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from harn import topics
from harn.clock import resolve
from harn.errors import HarnError
from harn.storage import Store
from harn.storage.leases import Heartbeat
from harn.storage.triggers import Orphan, keep_alive, leave, take_over
from harn.triggers.dispatch_state import Dispatch

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.triggers.registry import Triggers

logger = logging.getLogger("harn.triggers")

EVERY = 10.0
"""Seconds between two signs of life."""
AGAIN_AFTER = 1.0
"""Seconds after which what failed is tried again."""
MOST_IN_MEMORY = 20_000
"""Records kept of each of our topics when the log is in memory."""


class Recovery:
    """Looks after the inbox for a runtime's triggers; a store in memory needs none of it."""

    def __init__(self, runtime: Runtime, triggers: Triggers) -> None:
        self._runtime = runtime
        self._triggers = triggers
        self._store = runtime.service(Store)
        self._log = runtime.event_log
        self._heartbeat = runtime.service(Heartbeat)
        self._signs = self._heartbeat.beat("the triggers", self._store, self._give_sign)
        self._is_silent = True
        """Whether no sign of life is due: nothing has been taken in since the last one."""
        self._sign_at = 0.0
        self._seen = 0
        self._running: asyncio.Task[None] | None = None
        self.recovered = 0

    def begin(self) -> None:
        """See to it that signs of life are given and orphans are found."""
        if self._store.is_memory or self._runtime.closing:
            return
        if self._is_silent and self._has_news():
            self._is_silent = False
            # Taking an event in was a sign of life too.
            self._sign_at = self._heartbeat.clock.monotonic() + EVERY
            self._signs.wake()
        if self._running is None:
            self._running = asyncio.ensure_future(self._keep_recovering())
            self._runtime.own(self._running)

    def _has_news(self) -> bool:
        """Tell whether this process dispatches, or has done so since its last sign of life."""
        return bool(self._triggers.dispatcher.running) or self._triggers.taken_in != self._seen

    async def _give_sign(self) -> float | None:
        """Say that this process lives, while it dispatches. (On the heartbeat's thread.)"""
        now, owner = self._heartbeat.clock.monotonic(), self._triggers.dispatcher.owner
        if now < self._sign_at:
            return self._sign_at
        # Set before we look: an event that is taken in after that wakes us.
        self._is_silent = True
        if not self._has_news():
            return None
        self._is_silent = False
        self._seen = self._triggers.taken_in
        self._sign_at = now + AGAIN_AFTER
        try:
            await self._signs.run(partial(keep_alive, owner), by=now + EVERY)
        except HarnError as error:
            logger.warning("no sign of life could be given: %s", error)
        else:
            self._sign_at = now + EVERY
        return self._sign_at

    async def _keep_recovering(self) -> None:
        clock = self._runtime.clock
        while True:
            pause = EVERY
            try:
                if not self._triggers.by_hand:
                    await self.recover()
            except Exception as error:
                logger.warning("events of other processes could not be taken over: %s", error)
                pause = AGAIN_AFTER
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        if found:
            self.begin()
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
        self._signs.stop()
        if not self._store.is_memory:
            await self._store.run(partial(leave, self._triggers.dispatcher.owner))
