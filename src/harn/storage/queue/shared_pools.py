"""All that a shared pool needs of its queue; see `pool_work.py` for how they belong together."""

from __future__ import annotations

from harn.storage.queue.job_records import (
    ACKED,
    CANCELLED,
    CLAIMED,
    DEAD,
    PARKED,
    PURGED,
    READY,
    ClaimedJob,
    JobDraft,
    Settlement,
    SettlementResult,
)
from harn.storage.queue.pool_opening import PoolOpened, open_pool
from harn.storage.queue.pool_records import (
    CUT_OFF,
    PRIORITY_WIDTH,
    UNRUN,
    Evicted,
    Order,
    PoolClaim,
    PoolDone,
    PoolSettings,
    PoolSubmit,
    PoolWork,
    SubmitResult,
    Totals,
    Verdict,
)
from harn.storage.queue.pool_views import (
    ListedPool,
    PoolChanges,
    PoolCounts,
    count_pool,
    list_pools,
    pool_changes,
    pool_tasks,
)
from harn.storage.queue.pool_work import FOREVER_MS, work_on_pool
from harn.storage.queue.stored_jobs import StoredJob, read_jobs

__all__ = [
    "ACKED",
    "CANCELLED",
    "CLAIMED",
    "CUT_OFF",
    "DEAD",
    "FOREVER_MS",
    "PARKED",
    "PRIORITY_WIDTH",
    "PURGED",
    "READY",
    "UNRUN",
    "ClaimedJob",
    "Evicted",
    "JobDraft",
    "ListedPool",
    "Order",
    "PoolChanges",
    "PoolClaim",
    "PoolCounts",
    "PoolDone",
    "PoolOpened",
    "PoolSettings",
    "PoolSubmit",
    "PoolWork",
    "Settlement",
    "SettlementResult",
    "StoredJob",
    "SubmitResult",
    "Totals",
    "Verdict",
    "count_pool",
    "list_pools",
    "open_pool",
    "pool_changes",
    "pool_tasks",
    "read_jobs",
    "work_on_pool",
]
