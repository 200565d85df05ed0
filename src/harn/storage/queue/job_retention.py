"""Trimming the settled jobs of the queues and shared pools that a process serves, once a minute.

It runs on the heartbeat's thread: a look costs one small read, and a step removes a bounded number
of jobs in short transactions, with claims in between. Commands that only read have no consumer, so
they trim nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from harn.errors import HarnError
from harn.storage.leases import Heartbeat
from harn.storage.queue import retention
from harn.storage.queue.retention import Keeping
from harn.storage.store import Store
from harn.topics import queue_topics

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.storage")

EVERY = 60.0
"""Seconds between two looks at a queue."""
PAUSE = 0.1
"""Seconds between two steps, while there is more to trim."""
JOBS_AT_ONCE = 200
HISTORY_AT_ONCE = 1000
"""Jobs, and records of claims or responses, that one transaction removes at most."""
REWRITTEN_AT_ONCE = 100_000
"""The same, where removing anything rewrites the whole topic."""
WITHIN = 30.0


class JobRetention:
    """Trims the queues that this process serves: `runtime.service(JobRetention)`."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._keeping_jobs = Keeping(
            settings.keep_settled_ms, settings.keep_dead_ms, dedupe_ms=settings.dedupe_window_ms
        )
        self._keeping: dict[str, Keeping] = {}
        store = runtime.service(Store)
        self._rewrites = store.place.engine == "file"
        self._heartbeat = runtime.service(Heartbeat)
        self._beat = self._heartbeat.beat("trimming settled jobs", store, self._step)
        self._served: Counter[str] = Counter()
        self._looked: dict[str, float] = {}
        self._behind: set[str] = set()

    def serve(self, queue: str, keeping: Keeping | None = None) -> None:
        """Trim *queue* from now on, until `leave`; without *keeping* as the settings say."""
        keeping = self._keeping_jobs if keeping is None else keeping
        if not keeping.shortest:
            return
        self._keeping[queue] = keeping
        self._served[queue] += 1
        if self._is_due(queue):
            self._beat.wake()

    def leave(self, queue: str) -> None:
        """Stop trimming *queue*, after a look that is due already."""
        if queue in self._served:
            self._served[queue] -= 1

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
            has_more = await self._trim_once(queue)
        except HarnError as error:  # busy or not reached: the next look tries again
            logger.info("queue %r is not trimmed now: %s", queue, error)
            has_more = False
        if has_more:
            self._behind.add(queue)
        else:
            self._behind.discard(queue)

    async def _trim_once(self, queue: str) -> bool:
        """Remove jobs, and the records that only they needed; tell whether there may be more."""
        jobs, history = JOBS_AT_ONCE, HISTORY_AT_ONCE
        if self._rewrites:
            jobs = history = REWRITTEN_AT_ONCE
        settled = partial(
            retention.trim_settled,
            queue,
            self._keeping[queue],
            jobs,
            rewrites=self._rewrites,
        )
        gone = (await self._beat.run(settled, by=self._by(), durability="normal")).count
        if not gone and queue not in self._behind:
            return False
        has_more = gone > 0
        for topic in (queue_topics(queue).claims, queue_topics(queue).responses):
            old = partial(retention.trim_history, topic, self._keeping[queue], history)
            removed = await self._beat.run(old, by=self._by(), durability="normal")
            has_more = has_more or removed >= history
        return has_more

    def _by(self) -> float:
        return self._heartbeat.clock.monotonic() + WITHIN
