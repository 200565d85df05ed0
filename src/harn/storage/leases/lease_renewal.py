"""Renewing one lease: on time, again soon if that failed, lost before it expires."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from harn.errors import HarnError
from harn.storage.leases.heartbeat import Heartbeat
from harn.storage.operations import Recipe
from harn.storage.store import Store

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.storage")

MARGIN = 0.1
"""The last part of a lease's life. One that was not renewed before counts as lost."""
RETRIES = 4
"""Attempts in the time between two renewals, while the store does not answer."""


def lost_at(since: float, ttl: float) -> float:
    """Return when a lease of *ttl* seconds counts as lost that was asked for at *since*."""
    return since + ttl * (1 - MARGIN)


class LeaseRenewal:
    """Renews a lease of *ttl* seconds every *every* seconds, until it is lost or stopped.

    *renew* returns false if the lease was taken over. *since* is when the lease was asked for, by
    the heartbeat's clock: it expires *ttl* after that, however late the answer was. *lost* is
    called once, on the runtime's loop, with the reason: before the lease expires, so that its owner
    can stop before another one begins. *name* is for the log.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        store: Store,
        renew: Recipe[bool],
        *,
        every: float,
        ttl: float,
        since: float,
        lost: Callable[[str], None],
    ) -> None:
        self._heartbeat = runtime.service(Heartbeat)
        self._clock = self._heartbeat.clock
        self._name = name
        self._renew = renew
        self._every = every
        self._ttl = ttl
        self._asked = since
        self._lost = lost
        self._is_over = False
        self._beat = self._heartbeat.beat(name, store, self._step)
        self._beat.wake()

    @property
    def is_overdue(self) -> bool:
        """Whether it counts as lost by now, also if that was not noticed yet. On any thread."""
        return self._clock.monotonic() >= lost_at(self._asked, self._ttl)

    def stop(self) -> None:
        """Renew it no more; *lost* is not called after this. The lease expires by itself."""
        self._is_over = True
        self._beat.stop()

    async def _step(self) -> float | None:
        now, too_late = self._clock.monotonic(), lost_at(self._asked, self._ttl)
        if now >= too_late:
            self._lose("it could not be renewed in time")
            return None
        if now < self._asked + self._every:
            return min(self._asked + self._every, too_late)
        try:
            # A renewal that a power cut undoes has lost its owner, too: no sync has to follow.
            is_held = await self._beat.run(self._renew, by=too_late, durability="memory")
        except Exception as error:
            trace = None if isinstance(error, HarnError) else error
            logger.warning("%s could not be renewed: %s", self._name, error, exc_info=trace)
            return min(now + self._every / RETRIES, too_late)
        if not is_held:
            self._lose("it was taken over")
            return None
        self._asked = now  # not when the answer came: the store may have been slow
        return now + self._every

    def _lose(self, reason: str) -> None:
        self._heartbeat.tell(self._tell_lost, reason)

    def _tell_lost(self, reason: str) -> None:
        if not self._is_over:
            self.stop()
            self._lost(reason)
