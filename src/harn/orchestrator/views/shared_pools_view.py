"""The pools that processes share through the store, and which process holds their slots."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.leases import ConsumerRow, LeaseStore, list_consumers
from harn.storage.queue import shared_pools

MOST_PROCESSES = 10_000


async def shared_pools_view(runtime: Runtime) -> list[dict[str, Any]]:
    """Return the pools of scope `tenant` and `org` that the store has, each as a whole."""
    listed = await runtime.service(Store).run(shared_pools.list_pools, write=False)
    rows: list[ConsumerRow] = []
    if listed and (leases := runtime.service(LeaseStore)).is_there:
        rows = await leases.store.run(partial(list_consumers, MOST_PROCESSES), write=False)
    return [_pool(pool, rows) for pool in listed]


def _pool(pool: shared_pools.ListedPool, rows: list[ConsumerRow]) -> dict[str, Any]:
    settings, counts = pool.settings, pool.counts
    return {
        "pool": settings.name,
        "pool_id": pool.queue,
        "scope": settings.scope,
        "scope_id": settings.scope_id,
        "max_concurrent": settings.max_concurrent,
        "running": counts.totals.running,
        "queued": counts.totals.queued,
        "blocked": counts.totals.blocked,
        "completed": counts.completed,
        "failed": counts.failed,
        "processes": _processes(pool, rows),
    }


def _processes(pool: shared_pools.ListedPool, rows: list[ConsumerRow]) -> list[dict[str, Any]]:
    """Return the living processes of *pool*, and dead ones whose slots are not free yet."""
    running = Counter(slot.lease for slot in pool.held)
    found = [
        {
            "process": row.consumer_id,
            "host": row.host,
            "pid": row.pid,
            "running": running[row.lease],
            "alive": row.expires_at > row.now,
        }
        for row in rows
        if pool.queue in row.queues
    ]
    return [each for each in found if each["alive"] or each["running"]]
