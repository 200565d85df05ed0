"""Worker queues: durable hand-off between processes, with a fair turn for every key.

queue.py       WorkerQueue and Claim: enqueue, claim, renew, ack, fail, release, purge
policy.py      SchedulerPolicy: how consumers share a queue
fairshare.py   deficit round robin, decided
desk.py        what meets shares one transaction
consumer.py    drain: claim, work, renew, settle; working.py, one job at work
failures.py    what is kept of a failed attempt, and its log line
renewing.py    claims stay alive on a thread of their own
records.py     jobs, receipts, summaries
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
from harn.workers.policy import SchedulerPolicy
from harn.workers.queue import Claim, WorkerQueue, summarise, worker_queue, worker_queues
from harn.workers.records import DrainReport, EnqueueReceipt, Job, NewJob, QueueSummary

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
