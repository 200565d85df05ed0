"""Worker queues: jobs are records of the log, their state is an index beside it.

claim.py           enqueue, settle and claim, in one transaction
claimable.py       whether there is anything to claim, without writing
write_claims.py    the writes of a claim, once its jobs are chosen
single_statements.py the same in one or two statements, for an engine that has them
enqueue.py         how jobs enter a queue, and its index
dedupe_keys.py     which jobs of an enqueue are new
outbox.py          jobs that a caller's own PostgreSQL transaction enqueued
settle.py          ack, fail, release, renew, bury, cancel, retry, purge
expire.py          claims expire, and scheduled jobs come due
write_back.py      the end of an operation: the queue's row and its records are written
job_control.py     cancel, retry, purge, pause and resume
pauses.py          which parts of a queue are paused
parked_jobs.py     a paused tenant's jobs are parked, and made ready again
job_records.py     the records that a queue and its index exchange
queue_row.py       a queue's row, as an operation holds it
job_index.py       the rows of jobs, and the sums of each key's share
job_tables.py      all tables of the index; job_fold.py, how records of the log change them
time_histogram.py  how long jobs waited and handlers worked
job_changes.py     how settling, failing or releasing changes a job's row
job_charges.py     what jobs cost their keys, in millionths
attempt_history.py the attempts in a job's row
share_turns.py     a key's turn and credit, and the rule that moves them on
share_tree.py      the shares of a queue whose keys are paths
share_keys.py      the shares' keys, their cap, what a pick costs, and when idle ones go
read_queue.py      a queue's row, read without changing the queue
job_views.py       counts of a queue and its keys, and one job's place in it
job_steps.py       the steps of a job, recorded under its claim
stored_jobs.py     jobs as an application sees them: by id, or a page of them
gathered_records.py records that an operation gathers
shared_pools.py    all that a shared pool needs of its queue
pool_work.py       a shared pool: end, cancel, admit, submit and start its tasks, in one transaction
pool_opening.py    how a process opens a shared pool
pool_submits.py    how submits become tasks of a shared pool
pool_admission.py  the submits that wait for a place in a shared pool, and when they get one
pool_cancels.py    requests to cancel a running task, which outlive the process that runs it
pool_eviction.py   which queued task a full pool drops
pool_order.py      which queued task gets the next slot; pool_index.py, the pool's own changes
pool_records.py    what a shared pool and its queue exchange
pool_views.py      a pool read from outside: its changes, its tasks, its slots
dead_leases.py     what a process leaves behind whose lease has expired
retention.py       settled jobs are removed when their time is over; their totals stay
dead_jobs.py       the dead letter of a job that has no attempt left
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.queue import (
        claimable,
        job_charges,
        job_control,
        job_views,
        retention,
        share_tree,
        shared_pools,
        stored_jobs,
    )
    from harn.storage.queue.claim import (
        Claimed,
        QueueDone,
        QueueWork,
        settle_claims,
        work_on,
    )
    from harn.storage.queue.dead_leases import end_claims_of
    from harn.storage.queue.expire import end_due_in
    from harn.storage.queue.job_records import (
        PRIORITIES,
        STATES,
        Board,
        Choice,
        Choose,
        ClaimedJob,
        Dimension,
        JobDraft,
        Pick,
        Settlement,
        SettlementResult,
        function_need,
        share_key,
        shown_key,
    )
    from harn.storage.queue.job_tables import JobIndex
    from harn.storage.queue.job_views import (
        JobView,
        QueueCounts,
        ShareCounts,
        count_queue,
        in_flight_by_lease,
        list_shares,
        queue_names,
        waiting_functions,
    )
    from harn.storage.queue.share_turns import Share
    from harn.storage.queue.write_claims import Claiming
else:
    front_door(
        __name__,
        {
            ".": """
                claimable job_charges job_control job_views retention share_tree
                shared_pools stored_jobs
            """,
            "claim": "Claimed QueueDone QueueWork settle_claims work_on",
            "dead_leases": "end_claims_of",
            "expire": "end_due_in",
            "write_claims": "Claiming",
            "job_records": """
                PRIORITIES STATES Board Choice Choose ClaimedJob Dimension JobDraft Pick Settlement
                SettlementResult function_need share_key shown_key
            """,
            "job_tables": "JobIndex",
            "job_views": """
                JobView QueueCounts ShareCounts count_queue in_flight_by_lease list_shares
                queue_names waiting_functions
            """,
            "share_turns": "Share",
        },
    )

__all__ = [
    "PRIORITIES",
    "STATES",
    "Board",
    "Choice",
    "Choose",
    "Claimed",
    "ClaimedJob",
    "Claiming",
    "Dimension",
    "JobDraft",
    "JobIndex",
    "JobView",
    "Pick",
    "QueueCounts",
    "QueueDone",
    "QueueWork",
    "Settlement",
    "SettlementResult",
    "Share",
    "ShareCounts",
    "claimable",
    "count_queue",
    "end_claims_of",
    "end_due_in",
    "function_need",
    "in_flight_by_lease",
    "job_charges",
    "job_control",
    "job_views",
    "list_shares",
    "queue_names",
    "retention",
    "settle_claims",
    "share_key",
    "share_tree",
    "shared_pools",
    "shown_key",
    "stored_jobs",
    "waiting_functions",
    "work_on",
]
