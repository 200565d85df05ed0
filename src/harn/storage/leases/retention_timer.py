"""Trimming the settled jobs of the queues and shared pools that a process serves, once a minute.

It runs on the heartbeat's thread: a look costs one small read, and a step removes a bounded number
of jobs in short transactions, with claims in between. Commands that only read serve nothing, so
they trim nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from harn.errors import HarnError
from harn.storage.leases.heartbeat import Heartbeat
from harn.storage.operations import Recipe
from harn.storage.store import Store

if TYPE_CHECKING:
    from harn.runtime import Runtime

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("harn.storage")

EVERY = 60.0
"""Seconds between two looks at a queue."""
PAUSE = 0.1
"""Seconds between two steps, while there is more to trim."""
WITHIN = 30.0
"""Seconds that the store has to answer each of them."""

Trim = Callable[["JobRetention", bool], Awaitable[bool]]
"""Removes a bounded number of jobs of a queue with `run`; tells whether there may be more. It is
told whether the last step left some."""


class JobRetention:
    """Trims the queues that this process serves: `runtime.service(JobRetention)`."""

    def __init__(self, runtime: Runtime) -> None:
        store = runtime.service(Store)
        self.rewrites: bool = store.place.engine == "file"
        """Whether removing anything rewrites the whole topic."""
        self._heartbeat = runtime.service(Heartbeat)
        self._beat = self._heartbeat.beat("trimming settled jobs", store, self._step)
        self._trims: dict[str, Trim] = {}
        self._served: Counter[str] = Counter()
        self._looked: dict[str, float] = {}
        self._behind: set[str] = set()

    def serve(self, queue: str, trim: Trim) -> None:
        """Trim *queue* from now on, until `leave`."""
        self._trims[queue] = trim
        self._served[queue] += 1
        if self._is_due(queue):
            self._beat.wake()

    def leave(self, queue: str) -> None:
        """Stop trimming *queue*, after a look that is due already."""
        if queue in self._served:
            self._served[queue] -= 1

    async def run(self, recipe: Recipe[T]) -> T:
        """Carry out an operation of a trim, on the heartbeat's thread."""
        by = self._heartbeat.clock.monotonic() + WITHIN
        return await self._beat.run(recipe, by=by, durability="normal")

    def _is_due(self, queue: str) -> bool:
        looked = self._looked.get(queue)
        return looked is None or self._heartbeat.clock.monotonic() >= looked + EVERY

    async def _step(self) -> float | None:
        """Trim a little of each queue that is due; called on the heartbeat's thread."""
        served = [
            queue
            for queue, consumers in list(self._served.items())
            if consumers or queue in self._behind or queue not in self._looked
        ]
        for queue in served:
            if queue in self._behind or self._is_due(queue):
                await self._trim(queue)
        if self._behind:
            return self._heartbeat.clock.monotonic() + PAUSE
        return min(self._looked[queue] for queue in served) + EVERY if served else None

    async def _trim(self, queue: str) -> None:
        self._looked[queue] = self._heartbeat.clock.monotonic()
        try:
            has_more = await self._trims[queue](self, queue in self._behind)
        except HarnError as error:  # busy or not reached: the next look tries again
            logger.info("queue %r is not trimmed now: %s", queue, error)
            has_more = False
        if has_more:
            self._behind.add(queue)
        else:
            self._behind.discard(queue)
