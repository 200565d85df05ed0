"""The consumers of a service: one for each queue that may have jobs for its manifest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harn.clock import sleep_until
from harn.errors import HarnError
from harn.storage import Store
from harn.storage.queue import queue_names
from harn.triggers import JobRunner, Triggers
from harn.workers import Consumer, DrainReport, WorkerQueue

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.orchestrator")

LOOK_EVERY = 1.0
"""Seconds between two checks for new queues."""
QUEUE_CONCURRENCY = 8


class ServedQueues:
    """Consumes the queues *wanted*, or every queue of the store where it returns None."""

    def __init__(self, runtime: Runtime, wanted: Callable[[], tuple[str, ...] | None]) -> None:
        self._runtime = runtime
        self._wanted = wanted
        self._consumers: dict[str, tuple[Consumer, asyncio.Task[Any]]] = {}
        self._others: list[tuple[Consumer, asyncio.Task[Any]]] = []
        """Consumers of an earlier manifest with running jobs, and those that operators start."""
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Consume from now on, new queues included."""
        self._looking = asyncio.ensure_future(self._keep_looking())
        self._runtime.own(self._looking)

    def renew(self) -> None:
        """Replace the consumers, which have the triggers of an earlier manifest."""
        for consumer, running in self._consumers.values():
            consumer.retire()  # the next check starts a new one
            self._others.append((consumer, running))
        self._others = [each for each in self._others if not each[1].done()]
        self._consumers = {}

    async def run(self, consumer: Consumer) -> DrainReport:
        """Run a consumer beside those of the manifest; `stop` ends it too.

        Cancelling cancels its handlers and releases their jobs.
        """
        running = asyncio.ensure_future(consumer.run())
        self._others.append((consumer, running))
        try:
            return await running
        finally:
            self._others = [each for each in self._others if each[1] is not running]

    def stop(self) -> bool:
        """Claim no more, and ask the handlers of jobs to stop; false without a consumer."""
        if self._looking is not None:
            self._looking.cancel()
        for consumer, _ in self._all():
            consumer.stop()
        return bool(self._all())

    def give_up(self) -> None:
        """Cancel the handlers of jobs; the jobs are released."""
        for consumer, _ in self._all():
            consumer.give_up()

    def running(self) -> list[asyncio.Task[Any]]:
        """Return the tasks of all consumers."""
        return [running for _, running in self._all()]

    def _all(self) -> list[tuple[Consumer, asyncio.Task[Any]]]:
        return [*self._consumers.values(), *self._others]

    async def _keep_looking(self) -> None:
        while True:
            try:
                await self._look()
            except HarnError as error:
                logger.warning("the queues could not be read: %s", error)
            clock = self._runtime.clock
            await sleep_until(clock, clock.monotonic() + LOOK_EVERY, background=True)

    async def _look(self) -> None:
        active = self._runtime.service(Triggers).active()
        local = frozenset(binding.id for binding in active if binding.is_local)
        if not local:
            return
        names = self._wanted()
        if names is None:
            names = tuple(await self._runtime.service(Store).run(queue_names, write=False))
        for name in names:
            running = self._consumers.get(name)
            if running is None or running[1].done():
                self._consume(name, local)

    def _consume(self, name: str, local: frozenset[str]) -> None:
        consumer = Consumer(
            WorkerQueue(self._runtime, name, None),
            JobRunner(self._runtime),
            concurrency=QUEUE_CONCURRENCY,
            stop_when_empty=False,
            triggers=local,
        )
        running = asyncio.ensure_future(consumer.run())
        self._runtime.own(running)
        self._consumers[name] = (consumer, running)
