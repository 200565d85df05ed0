"""Handle the jobs of a queue with one consumer, until the queue is empty or for good."""

from __future__ import annotations

from harn.current import current_runtime
from harn.duration import Duration
from harn.retry_policy import RetryPolicy
from harn.workers.consumer import Consumer, Handler
from harn.workers.queue import WorkerQueue
from harn.workers.queue_reports import DrainReport
from harn.workers.scheduler_policy import SchedulerPolicy


async def drain(
    queue_name: str,
    handler: Handler | None = None,
    *,
    consumer_id: str | None = None,
    claim_ttl: Duration = "5m",
    concurrency: int = 1,
    stop_when_empty: bool = True,
    retry: RetryPolicy | None = None,
    policy: SchedulerPolicy | None = None,
) -> DrainReport:
    """Handle the jobs of a queue: *handler(job)* returns the outcome, or raises.

    Without a handler it runs the `@durable` functions that were submitted, and claims only jobs of
    functions that this process has imported.

    An outcome acks the job. An error leaves it to be claimed again after the wait that *retry* asks
    for, or without one when the claim of *claim_ttl* expires, until its attempts are used up; a
    durable function follows its own policy first. A handler may also raise `RetryLater`,
    `GiveBack` or `Bury`. Claims are renewed while handlers work. With *stop_when_empty* it returns
    when nothing is left to claim, else it waits for more.

    Cancelling cancels the handlers and releases their jobs.

    >>> import harn
    >>> async def main() -> int:
    ...     await harn.worker_queue("triage").enqueue_many([1, 2, 3])
    ...     report = await harn.drain("triage", lambda job: job.payload * 2)
    ...     return report.acked
    >>> harn.run(main)
    3
    """
    consumer = Consumer(
        WorkerQueue(current_runtime(), queue_name, policy),
        handler,
        consumer_id=consumer_id,
        claim_ttl=claim_ttl,
        concurrency=concurrency,
        stop_when_empty=stop_when_empty,
        retry=retry,
    )
    return await consumer.run()
