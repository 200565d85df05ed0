"""Agent pools: named budgets of concurrency that many submitters share.

options.py          the options of a pool and of a submit
pool.py             Pool: what a caller sees of a pool
admission.py        how a submit becomes a task; blocked_submitters.py, those that wait for a place
submit_many.py      how several calls are submitted together
backpressure.py     what a full queue does with one more submit; eviction.py, which task it drops
queue_strategies.py which queued task is next: fifo, priority, ...; task_queues.py, their queues
slots.py            which task runs, and how it ends; worker.py, the workers that run closures
closure_frame.py    a running closure, as the runtime sees it
self_deadlock.py    closures that wait for their own pool
task.py             PoolTask, the handle; snapshots.py, what can be seen of it
task_ids.py         ids and times
ended_tasks.py      the tasks that have ended, and how long they are kept
idempotency_keys.py which task a key leads to
journal_records.py  the lines of a journal; journal_file.py, its file; journal.py, its thread
persistence.py      what is written to the journal when, and what a restart makes of it
task_steps.py       the steps of a durable call, in the journal
journal_view.py     journals read from outside
caused_tasks.py     the tasks that a piece of work caused, to be waited for
registry.py         pool_create, pool_get, pool_list, pool_simulate_restart
task_waits.py       pool_wait: wait for tasks of any pool
metrics.py          the pools' metrics; pending_tasks.py, the tasks that have not ended
backlogs.py         whether pools continue what their journals hold
pool_host.py        which pools come from a host: the seam for applications that embed harn
shared_pool.py      SharedPool: a tenant or org pool, shared by processes through the store
shared_pool_slots.py what runs in this process, and what is sent to the store
shared_mirror.py    its tasks as one process knows them; shared_follow.py, what others do
shared_changes.py   what the store reports of a task, and what that changes here
shared_work.py      its operations: those that meet share a transaction
shared_submits.py   a submit on its way to the store, and the verdict on each of its tasks
shared_ends.py      how a task's end reaches the store, and how one is read from there
shared_cancels.py   cancelling tasks, wherever they run; undoing submits
shared_recovery.py  after a lost answer or a lost lease
shared_steps.py     the steps of its durable calls, in the store
shared_process.py   the lease under which this process has its slots
shared_records.py   its tasks as the store keeps them
slot_holders.py     whether a slot of a shared pool was leaked
audit.py            receipts on lifecycle.pool.audit
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.pools.backlogs import Backlogs
    from harn.pools.backpressure import (
        Backpressure,
        BackpressurePolicy,
        backpressure_queue,
        fail_fast,
        ring_buffer,
    )
    from harn.pools.caused_tasks import Caused, CausedOutcome, causing, current_caused
    from harn.pools.journal_view import JournalView, look_at_journals
    from harn.pools.options import PoolOptions, Retention
    from harn.pools.pool import Pool
    from harn.pools.pool_host import PoolHost
    from harn.pools.queue_strategies import (
        QueueStrategy,
        Strategy,
        fair_round_robin,
        fifo,
        lifo,
        priority,
    )
    from harn.pools.registry import (
        PoolRegistry,
        pool_create,
        pool_get,
        pool_id,
        pool_list,
        pool_simulate_restart,
    )
    from harn.pools.slot_holders import leaked_slots
    from harn.pools.snapshots import PoolSnapshot, TaskSnapshot
    from harn.pools.task import PoolTask
    from harn.pools.task_waits import pool_wait
else:
    front_door(
        __name__,
        {
            "backpressure": """
                Backpressure BackpressurePolicy backpressure_queue fail_fast ring_buffer
            """,
            "backlogs": "Backlogs",
            "caused_tasks": "Caused CausedOutcome causing current_caused",
            "pool_host": "PoolHost",
            "journal_view": "JournalView look_at_journals",
            "options": "PoolOptions Retention",
            "pool": "Pool",
            "registry": """
                PoolRegistry pool_create pool_get pool_id pool_list pool_simulate_restart
            """,
            "slot_holders": "leaked_slots",
            "snapshots": "PoolSnapshot TaskSnapshot",
            "queue_strategies": "QueueStrategy Strategy fair_round_robin fifo lifo priority",
            "task": "PoolTask",
            "task_waits": "pool_wait",
        },
    )

__all__ = [
    "Backlogs",
    "Backpressure",
    "BackpressurePolicy",
    "Caused",
    "CausedOutcome",
    "JournalView",
    "Pool",
    "PoolHost",
    "PoolOptions",
    "PoolRegistry",
    "PoolSnapshot",
    "PoolTask",
    "QueueStrategy",
    "Retention",
    "Strategy",
    "TaskSnapshot",
    "backpressure_queue",
    "causing",
    "current_caused",
    "fail_fast",
    "fair_round_robin",
    "fifo",
    "leaked_slots",
    "lifo",
    "look_at_journals",
    "pool_create",
    "pool_get",
    "pool_id",
    "pool_list",
    "pool_simulate_restart",
    "pool_wait",
    "priority",
    "ring_buffer",
]
