"""This process's lease on its events, and the events of processes that died.

A process that dispatches renews its lease every ten seconds on the heartbeat's thread, so that a
handler that blocks the loop does not make the process look dead. A process takes over the events
of its triggers whose owner is gone, and continues their dispatches at the recorded attempt.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from harn import topics
from harn.clock import sleep_until
from harn.errors import HarnError
from harn.storage import Store
from harn.storage.leases import Heartbeat
from harn.storage.triggers import Orphan, keep_alive, leave, take_over
from harn.teardown import retrieve
from harn.triggers.dispatch_state import Dispatch

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.triggers.registry import Triggers

logger: logging.Logger = logging.getLogger("harn.triggers")

EVERY = 10.0
"""Seconds between two renewals of the lease."""
AGAIN_AFTER = 1.0
"""Seconds before a failed renewal or takeover is tried again, or the next events are taken over."""
AT_ONCE = 100
"""Events that one operation takes over at most."""
MOST_IN_MEMORY = 20_000
"""Records kept of each trigger topic when the log is in memory."""


class Recovery:
    """Renews the lease and takes events over; a store in memory needs neither."""

    def __init__(self, runtime: Runtime, triggers: Triggers) -> None:
        self._runtime = runtime
        self._triggers = triggers
        self._store = runtime.service(Store)
        self._log = runtime.event_log
        self._heartbeat = runtime.service(Heartbeat)
        self._renewals = self._heartbeat.beat("the triggers", self._store, self._renew)
        self._is_idle = True
        """Whether no renewal is due: no event was accepted since the last one."""
        self._renew_at = 0.0
        self._seen = 0
        self._running: asyncio.Task[None] | None = None
        self.recovered: int = 0

    def begin(self) -> None:
        """Start renewing the lease and looking for events to take over, if not yet started."""
        if self._store.is_memory or self._runtime.closing:
            return
        if self._is_idle and self._has_work():
            self._is_idle = False
            # Accepting an event has just written the lease too.
            self._renew_at = self._heartbeat.clock.monotonic() + EVERY
            self._renewals.wake()
        if self._running is None:
            self._running = asyncio.ensure_future(self._keep_recovering())
            self._runtime.own(self._running)

    def _has_work(self) -> bool:
        """Tell whether this process dispatches, or has accepted events since its last renewal."""
        return bool(self._triggers.dispatcher.running) or self._triggers.taken_in != self._seen

    async def _renew(self) -> float | None:
        """Renew the lease while this process dispatches. (On the heartbeat's thread.)"""
        now, owner = self._heartbeat.clock.monotonic(), self._triggers.dispatcher.owner
        if now < self._renew_at:
            return self._renew_at
        # Set before the check: an event that is accepted after the check wakes this again.
        self._is_idle = True
        if not self._has_work():
            return None
        self._is_idle = False
        self._seen = self._triggers.taken_in
        self._renew_at = now + AGAIN_AFTER
        try:
            await self._renewals.run(partial(keep_alive, owner), by=now + EVERY)
        except HarnError as error:
            logger.warning("the lease of the triggers could not be renewed: %s", error)
        else:
            self._renew_at = now + EVERY
        return self._renew_at

    async def _keep_recovering(self) -> None:
        clock = self._runtime.clock
        while True:
            pause = EVERY
            try:
                if not self._triggers.by_hand and await self.recover() == AT_ONCE:
                    pause = AGAIN_AFTER  # there may be more
            except Exception as error:
                logger.warning("events of other processes could not be taken over: %s", error)
                pause = AGAIN_AFTER
            await sleep_until(clock, clock.monotonic() + pause, background=True)

    async def recover(self) -> int:
        """Take over unfinished events of processes that are gone; return how many."""
        bindings = frozenset(binding.id for binding in self._triggers.active())
        if not bindings:
            return 0
        owner = self._triggers.dispatcher.owner
        found = await self._store.run(partial(take_over, owner, bindings, AT_ONCE))
        self.recovered += len(found)
        for orphan in found:
            await self._adopt(orphan)
        if found:
            self.begin()
        return len(found)

    async def take(self, envelope: int, binding_id: str) -> Dispatch | None:
        """Take one envelope over and start its dispatch; None if its owner still lives.

        Cancelling stops waiting; an envelope that was taken over is dispatched.
        """
        # In its own task: an event that is taken and not dispatched waits for this process's end.
        taking = asyncio.ensure_future(self._take(envelope, binding_id))
        taking.add_done_callback(retrieve)
        self._runtime.own(taking)
        return await asyncio.shield(taking)

    async def _take(self, envelope: int, binding_id: str) -> Dispatch | None:
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
        payload = found[0].payload
        dispatch = Dispatch(
            binding,
            event,
            orphan.envelope,
            replay_of=payload.get("replay_of_event_id"),
            replay=payload.get("replay", 0),
            attempt=orphan.attempt,
            due_ms=orphan.due_ms,
            taken=orphan.taken,
            came_with=found[0].headers,
        )
        self._triggers.dispatcher.start(dispatch)
        return dispatch

    async def bound_memory(self) -> None:
        """Trim the trigger topics of a store in memory, and remove what has expired.

        Cancelling leaves some of them as they are.
        """
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
        """End the lease, so that other processes can take the unfinished events over at once.

        If this is cancelled, the lease may expire instead.
        """
        self._renewals.stop()
        if not self._store.is_memory:
            await self._store.run(partial(leave, self._triggers.dispatcher.owner))
