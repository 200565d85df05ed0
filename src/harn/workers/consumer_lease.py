"""The lease of a consumer: while it is renewed the consumer is alive; its claims end with it.

The heartbeat's thread renews the lease, however busy the loop is, and looks for consumers whose
lease has expired: their claims are ended at once, without waiting for the claims' own time to live.
A consumer that wakes too late finds that its lease has ended. It cancels its handlers, ends what it
claimed since under the old lease, and continues under a new one; its old claims raise `ClaimLost`
if other consumers have taken them over.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from harn.errors import HarnError
from harn.settings import host_name
from harn.storage import Recipe
from harn.storage.leases import (
    ConsumerLease,
    DeadConsumers,
    Heartbeat,
    JobRetention,
    LeaseStore,
    drop_consumer,
    keep_consumer,
)
from harn.storage.queue import end_claims_of, retention
from harn.workers.claim_renewal import ClaimRenewal

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.workers")

RETRIES = 4
"""Attempts to renew within one interval, while the store does not answer."""
PATIENCE = 10.0
"""Seconds that the store has to answer: it may have to open a connection first."""


class Serving(NamedTuple):
    """One queue that a consumer serves."""

    queue: str
    lost: Callable[[str], None]
    """Called on the loop when the lease has ended."""
    functions: Callable[[], list[str] | None]
    """Returns the functions that it runs there; None if it handles every job. On any thread."""


class LivingConsumer:
    """One consumer of this process: its lease, and the queues that it serves under it."""

    def __init__(self, runtime: Runtime, consumer_id: str) -> None:
        self.consumer_id = consumer_id
        self.lease: str = runtime.ids.uuid7()
        self._runtime = runtime
        self._store = runtime.service(LeaseStore).store
        self._heartbeat = runtime.service(Heartbeat)
        self._serving: list[Serving] = []
        self._every = runtime.settings.lease_renew_ms / 1000
        self._due = 0.0
        """When the lease must be renewed, by the heartbeat's clock."""
        self._beat = self._heartbeat.beat(f"consumer {consumer_id!r}", self._store, self._renew)
        self._claims = runtime.service(ClaimRenewal)
        self._dead = runtime.service(DeadConsumers)
        self._lost: list[str] = []
        """Leases that have ended, under which a claim may still have been made."""

    @property
    def is_idle(self) -> bool:
        """Whether it serves no queue any more."""
        return not self._serving

    async def serve(self, serving: Serving) -> None:
        """Serve another queue too, under a lease that is renewed from now on.

        Cancelling may leave the lease taken; `LivingConsumers.join` then ends it.
        """
        self._serving.append(serving)
        asked = self._heartbeat.clock.monotonic()
        await self._store.run(self._keeping(), durability="normal")
        self._due = asked + self._every
        self._beat.wake()

    def leave(self, serving: Serving) -> None:
        """Stop serving that queue."""
        self._serving.remove(serving)

    async def end(self) -> None:
        """Release the lease; no claim is held under it any more.

        Cancelling may leave it to expire by itself.
        """
        self._beat.stop()
        try:
            await self._store.run(partial(drop_consumer, self.lease), durability="normal")
        except HarnError as error:
            logger.info("consumer %r stays listed for a while: %s", self.consumer_id, error)

    def _keeping(self) -> Recipe[bool]:
        mine = ConsumerLease(
            self.lease,
            self.consumer_id,
            host_name(),
            os.getpid(),
            {each.queue: each.functions() for each in self._serving},
            self._runtime.settings.lease_ms,
        )
        return partial(keep_consumer, mine)

    async def _renew(self) -> float | None:
        """Renew the lease; called on the heartbeat's thread."""
        now = self._heartbeat.clock.monotonic()
        if now < self._due:
            return self._due
        by = now + PATIENCE
        try:
            # A renewal that a power cut undoes has lost its consumer, too: no sync has to follow.
            is_alive = await self._beat.run(self._keeping(), by=by, durability="memory")
            if is_alive:
                await self._claims.lose_cancelled(by)
                await self._end_late_claims()
                self._due = now + self._every
                return self._due
        except HarnError as error:
            logger.warning("consumer %r could not renew its lease: %s", self.consumer_id, error)
            return now + self._every / RETRIES
        self._lost.append(self.lease)
        self.lease = self._runtime.ids.uuid7()
        self._heartbeat.tell(self._lose)
        return now

    async def _end_late_claims(self) -> None:
        """End what was claimed under a lease of ours between its end and the moment we noticed.

        Other consumers ended its claims before, and do not look again. A claim that is answered
        later is released by its `Consumer`.
        """
        while self._lost:
            await self._dead.end_claims(self._lost[0], [each.queue for each in self._serving])
            del self._lost[0]

    def _lose(self) -> None:
        logger.warning(
            "consumer %r woke after its lease had expired; it cancels its handlers and continues "
            "under a new lease",
            self.consumer_id,
        )
        for each in list(self._serving):
            each.lost("its consumer's lease expired")


class LivingConsumers:
    """The consumers of this process."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_id: dict[str, LivingConsumer] = {}
        self._retention = runtime.service(JobRetention)
        settings = runtime.settings
        self._keeping = retention.Keeping(
            settings.keep_settled_ms, settings.keep_dead_ms, dedupe_ms=settings.dedupe_window_ms
        )
        self._dead = runtime.service(DeadConsumers)

    async def join(self, consumer_id: str, serving: Serving) -> LivingConsumer:
        """Serve a queue as *consumer_id*, under one lease with the other queues it serves.

        Cancelling leaves the consumer as it was before.
        """
        living = self._by_id.get(consumer_id)
        if living is None:
            living = self._by_id[consumer_id] = LivingConsumer(self._runtime, consumer_id)
        try:
            await living.serve(serving)
        except BaseException:
            await self._end(living, serving)
            raise
        self._dead.watch(end_claims_of)
        if self._keeping.shortest:
            trim = partial(retention.trim_queue, serving.queue, self._keeping)
            self._retention.serve(serving.queue, trim)
        return living

    async def leave(self, living: LivingConsumer, serving: Serving) -> None:
        """Stop serving a queue; a consumer that serves none is no longer listed."""
        self._retention.leave(serving.queue)
        await self._end(living, serving)

    async def _end(self, living: LivingConsumer, serving: Serving) -> None:
        living.leave(serving)
        if living.is_idle and self._by_id.get(living.consumer_id) is living:
            del self._by_id[living.consumer_id]
            await living.end()
