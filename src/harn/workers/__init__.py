"""Worker queues: durable hand-off between processes, with a fair turn for every key.

queue.py             WorkerQueue: enqueue, claim, list, cancel, retry, pause, purge
enqueue_on.py        enqueue in the caller's own PostgreSQL transaction
held_claim.py        Claim: renew, ack, fail, release
queue_operations.py  enqueues, settlements and claims that meet share one transaction
scheduler_policy.py  SchedulerPolicy: how consumers share a queue
job_choice.py        which job is next: the oldest, or by a fair share
fairshare.py         deficit round robin, decided; fairshare_tree.py, the same in a tree of keys
key_heads.py         one key's share and its next jobs, as both read them
whatif/              a queue's log, replayed by another policy in virtual time
consumer.py          Consumer: claim, work, renew, settle; drain.py, one consumer for one queue
idle_consumers.py    one look at the store for all idle consumers of a process
function_jobs.py     durable functions as jobs: submit writes them, a consumer runs them
after_failure.py     what happens to a job after a failed attempt, decided
handler_exceptions.py RetryLater, GiveBack, Bury: what a handler may raise
queue_worker.py      QueueWorker: several queues under one consumer id, as `harn worker` serves them
shared_slots.py      slots that the consumers of a worker share
crew.py              Crew: begins handlers on shared tasks; one that waits keeps its task
running_job.py       RunningJob: a claimed job, its handler and its settlement
job_tasks.py         JobTasks: makes the tasks that handlers run in
consumer_lease.py    the lease of a living consumer, and the end of dead ones' claims
consumer_states.py   consumers: the consumers of all processes
claim_renewal.py     renews the claims of running jobs on the heartbeat's thread
failures.py          the record of a failed attempt, and its log line
records.py           jobs as they enter a queue, and as handlers get them
enqueue_receipt.py   EnqueueReceipt: a way to the result of a job
queue_reports.py     QueueSummary, DrainReport: how much a queue holds, what a drain did
job_state.py         JobState: a job as an application sees it
job_reads.py         reading the states of jobs, together
job_results.py       waiting for jobs to be settled, in any process; awaited_jobs.py, which ones
job_cancel.py        a job is cancelled; retry_dead_jobs.py, a dead one is made ready again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.workers.consumer import Consumer, default_consumer_id
    from harn.workers.consumer_states import ConsumerState, consumers, consumers_for
    from harn.workers.drain import drain
    from harn.workers.enqueue_receipt import EnqueueReceipt
    from harn.workers.failures import Failure
    from harn.workers.handler_exceptions import Bury, GiveBack, RetryLater
    from harn.workers.held_claim import Claim
    from harn.workers.job_state import JobState, JobStep
    from harn.workers.key_heads import rank
    from harn.workers.queue import WorkerQueue, worker_queue, worker_queues
    from harn.workers.queue_reports import DrainReport, QueueSummary, count_in_full, summarise
    from harn.workers.queue_worker import QueueWorker
    from harn.workers.records import Job, NewJob, Priority
    from harn.workers.scheduler_policy import SchedulerPolicy
else:
    front_door(
        __name__,
        {
            "consumer": "Consumer default_consumer_id",
            "consumer_states": "ConsumerState consumers consumers_for",
            "drain": "drain",
            "failures": "Failure",
            "held_claim": "Claim",
            "job_state": "JobState JobStep",
            "key_heads": "rank",
            "queue": "WorkerQueue worker_queue worker_queues",
            "queue_worker": "QueueWorker",
            "enqueue_receipt": "EnqueueReceipt",
            "records": "Job NewJob Priority",
            "queue_reports": "DrainReport QueueSummary count_in_full summarise",
            "scheduler_policy": "SchedulerPolicy",
            "handler_exceptions": "Bury GiveBack RetryLater",
        },
    )

__all__ = [
    "Bury",
    "Claim",
    "Consumer",
    "ConsumerState",
    "DrainReport",
    "EnqueueReceipt",
    "Failure",
    "GiveBack",
    "Job",
    "JobState",
    "JobStep",
    "NewJob",
    "Priority",
    "QueueSummary",
    "QueueWorker",
    "RetryLater",
    "SchedulerPolicy",
    "WorkerQueue",
    "consumers",
    "consumers_for",
    "count_in_full",
    "default_consumer_id",
    "drain",
    "rank",
    "summarise",
    "worker_queue",
    "worker_queues",
]
