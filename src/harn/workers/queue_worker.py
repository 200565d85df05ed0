"""Several queues, served forever by one process: what `harn worker` runs.

Each queue has a consumer of its own. They share one consumer id, so one lease says whether they
are alive, and one set of slots, so *concurrency* counts the jobs of all queues together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harn.duration import Duration
from harn.tasks import scope
from harn.workers.consumer import Consumer, default_consumer_id
from harn.workers.queue import WorkerQueue
from harn.workers.shared_slots import SharedSlots

if TYPE_CHECKING:
    from harn.runtime import Runtime


class QueueWorker:
    """Runs the `@durable` functions that were submitted to *queues*, until it is stopped."""

    def __init__(
        self,
        runtime: Runtime,
        queues: Sequence[str],
        *,
        concurrency: int = 10,
        claim_ttl: Duration = "5m",
    ) -> None:
        self.runtime = runtime
        self.consumer_id: str = default_consumer_id(runtime)
        slots = SharedSlots(concurrency)
        self._consumers = [
            Consumer(
                WorkerQueue(runtime, name, None),
                None,
                consumer_id=self.consumer_id,
                claim_ttl=claim_ttl,
                concurrency=slots,
                stop_when_empty=False,
            )
            for name in dict.fromkeys(queues)
        ]
        for consumer in self._consumers:
            consumer.responses = deque(maxlen=0)  # no report is made of them

    async def run(self) -> None:
        """Serve the queues until `stop`.

        Cancelling cancels the handlers and releases their jobs.
        """
        async with scope() as nursery:
            for consumer in self._consumers:
                nursery.spawn(consumer.run)

    def stop(self) -> None:
        """Claim no more, and ask the handlers to stop; `run` returns when they have ended."""
        for consumer in self._consumers:
            consumer.stop()

    def give_up(self) -> None:
        """Cancel the handlers and release their jobs."""
        for consumer in self._consumers:
            consumer.give_up()

    def counts(self) -> dict[str, Any]:
        """Tell what each queue's consumer has done so far, JSON-ready."""
        return {
            each.queue.name: {
                "in_flight": each.running,
                "acked": each.acked,
                "deferred": each.deferred,
                "released": each.released,
            }
            for each in self._consumers
        }
