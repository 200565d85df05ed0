"""The search for consumers whose lease has expired, and the end of what they have claimed.

One search for each runtime serves all that holds claims: worker queues and shared pools. It runs on
the heartbeat's thread and looks when the next lease would expire.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from harn.storage.leases.consumer_leases import end_consumer, take_expired_consumers
from harn.storage.leases.heartbeat import Heartbeat
from harn.storage.leases.lease_store import LeaseStore
from harn.storage.operations import Operation
from harn.storage.store import Store

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.storage")

PATIENCE = 10.0
"""Seconds that the store has to answer: it may have to open a connection first."""
LATE = 0.05
"""Seconds after a lease's expiry at which the next look is made."""

EndClaims = Callable[[str, str, Callable[[str], str]], Operation[int]]
"""Ends a batch of what is held under a lease in one queue; returns how many jobs."""


class DeadConsumers:
    """Looks for dead consumers once it is asked to: `runtime.service(DeadConsumers)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._heartbeat = runtime.service(Heartbeat)
        leases, jobs = runtime.service(LeaseStore).store, runtime.service(Store)
        self._look = self._heartbeat.beat(
            "the search for dead consumers", leases, self._end_dead_ones
        )
        self._ending = self._heartbeat.beat(
            "the claims of dead consumers", jobs, self._end_dead_ones
        )
        self._end: EndClaims | None = None

    def watch(self, end: EndClaims) -> None:
        """Look from now on; *end* ends the claims of a dead consumer in a queue."""
        self._end = end
        self._look.wake()

    async def end_claims(self, lease: str, queues: Iterable[str]) -> None:
        """End the claims that were made under a lease that has ended; on the heartbeat's thread."""
        assert self._end is not None
        for queue in queues:
            ending = partial(self._end, queue, lease, self._runtime.ids.new)
            while await self._ending.run(ending, by=self._heartbeat.clock.monotonic() + PATIENCE):
                pass

    async def _end_dead_ones(self) -> float | None:
        """End the claims of consumers that have died; called on the heartbeat's thread."""
        clock = self._heartbeat.clock
        looked = await self._look.run(take_expired_consumers, by=clock.monotonic() + PATIENCE)
        for dead in looked.expired:
            logger.warning(
                "consumer %r has not renewed its lease; its claims are ended", dead.consumer_id
            )
            await self.end_claims(dead.lease, dead.queues)
            ended = partial(end_consumer, dead.lease)
            await self._look.run(ended, by=clock.monotonic() + PATIENCE)
        if looked.next_expiry_in_ms is None:
            return None
        return clock.monotonic() + max(0, looked.next_expiry_in_ms) / 1000 + LATE
