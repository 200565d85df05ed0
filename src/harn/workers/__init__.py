"""Worker queues: durable hand-off between processes, with a fair turn for every key.

queue.py             WorkerQueue and Claim: enqueue, claim, renew, ack, fail, release, purge
queue_operations.py  enqueues, settlements and claims that meet share one transaction
scheduler_policy.py  SchedulerPolicy: how consumers share a queue
fairshare.py         deficit round robin, decided
consumer.py          drain: claim, work, renew, settle
running_job.py       RunningJob: a claimed job, its handler and its settlement
claim_renewal.py     renews the claims of running jobs on a thread of its own
failures.py          what is kept of a failed attempt, and its log line
records.py           jobs, receipts, summaries
"""

from harn.workers.consumer import (
    Bury,
    Consumer,
    GiveBack,
    RetryLater,
    default_consumer_id,
    drain,
)
from harn.workers.failures import Failure
from harn.workers.fairshare import rank
from harn.workers.queue import Claim, WorkerQueue, summarise, worker_queue, worker_queues
from harn.workers.records import DrainReport, EnqueueReceipt, Job, NewJob, QueueSummary
from harn.workers.scheduler_policy import SchedulerPolicy

__all__ = [
    "Bury",
    "Claim",
    "Consumer",
    "DrainReport",
    "EnqueueReceipt",
    "Failure",
    "GiveBack",
    "Job",
    "NewJob",
    "QueueSummary",
    "RetryLater",
    "SchedulerPolicy",
    "WorkerQueue",
    "default_consumer_id",
    "drain",
    "rank",
    "summarise",
    "worker_queue",
    "worker_queues",
]
