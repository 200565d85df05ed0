"""Parking the jobs of a paused tenant, and making them ready again: a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harn.storage.operations import Operation, ask
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_index import Shifts
from harn.storage.queue.job_records import PARKED, PRIORITIES, READY
from harn.storage.queue.pauses import Pauses, Progress, StoredPause
from harn.storage.queue.queue_row import QueueState, save_pauses

BATCH = 1000
"""Jobs that one operation parks or makes ready again at most."""


def begin_pause(state: QueueState, record: dict[str, Any]) -> Operation[None]:
    """Pause the queue, or the tenant that *record* names; its jobs are parked after that."""
    pauses = state.pauses
    pause = StoredPause(record["paused_at_ms"], record.get("reason"))
    tenant = record.get("tenant_id")
    if tenant is None:
        pauses.queue = pause
    else:
        pause.parking = (0, 0)
        pauses.tenants[tenant] = pause
    yield from save_pauses(state, pauses)


def begin_resumption(state: QueueState, record: dict[str, Any]) -> Operation[None]:
    """Resume the queue, or the tenant that *record* names; its jobs are made ready after that."""
    pauses = state.pauses
    tenant = record.get("tenant_id")
    if tenant is None:
        pauses.queue = None
    elif tenant in pauses.tenants:
        pauses.tenants[tenant].is_ending = True
        pauses.tenants[tenant].parking = None
    yield from save_pauses(state, pauses)


def carry_on(state: QueueState) -> Operation[bool]:
    """Park or unpark one more batch of jobs; tell whether any are left."""
    pauses = state.pauses
    unfinished = pauses.unfinished
    if not unfinished:
        return False
    tenant = unfinished[0]
    if pauses.tenants[tenant].is_ending:
        yield from _bring_back(state, pauses, tenant)
    else:
        yield from _park(state, pauses, tenant)
    return bool(state.pauses.unfinished)


def _park(state: QueueState, pauses: Pauses, tenant: str) -> Operation[None]:
    progress = pauses.tenants[tenant].parking
    assert progress is not None
    priority, after = progress
    rows = yield from ready_page(state.queue_id, state.dimension, priority, tenant, after, BATCH)
    ids = [id for (id,) in rows]
    following: Progress | None = None
    if len(ids) == BATCH:
        following = priority, ids[-1]
    elif priority + 1 < len(PRIORITIES):
        following = priority + 1, 0
    record = {"tenant_id": tenant, "job_event_ids": ids, "parking": following}
    note(state, "jobs_parked", record)
    yield from fold_parked(state, record)


def _bring_back(state: QueueState, pauses: Pauses, tenant: str) -> Operation[None]:
    rows = yield ask(
        "page_of_tenant",
        queue_id=state.queue_id,
        tenant_id=tenant,
        state=PARKED,
        after=0,
        limit=BATCH,
    )
    ids = [id for (id,) in rows]
    record = {"tenant_id": tenant, "job_event_ids": ids, "is_over": len(ids) < BATCH}
    note(state, "jobs_unparked", record)
    yield from fold_unparked(state, record)


def ready_page(
    queue_id: int, dimension: str, priority: int, tenant: str | None, after: int, limit: int
) -> Operation[Sequence[Any]]:
    """Return ids of ready jobs of a priority after an id; of one tenant, unless it is None."""
    where = {"queue_id": queue_id, "priority": priority, "after": after, "limit": limit}
    if tenant is not None and dimension == "tenant":
        return (yield ask("page_of_key", key=tenant, **where))
    return (yield ask("page_of_ready", tenant_id=tenant, **where))


def fold_parked(state: QueueState, record: dict[str, Any]) -> Operation[None]:
    """Park the jobs that *record* names."""
    yield from move_jobs(state, record["job_event_ids"], READY, PARKED)
    pauses = state.pauses
    pause = pauses.tenants.get(record["tenant_id"])
    if pause is not None:
        progress = record["parking"]
        pause.parking = None if progress is None else (progress[0], progress[1])
        yield from save_pauses(state, pauses)


def fold_unparked(state: QueueState, record: dict[str, Any]) -> Operation[None]:
    """Make the jobs that *record* names ready again."""
    yield from move_jobs(state, record["job_event_ids"], PARKED, READY)
    if record["is_over"]:
        pauses = state.pauses
        pauses.tenants.pop(record["tenant_id"], None)
        yield from save_pauses(state, pauses)


def move_jobs(state: QueueState, ids: Sequence[int], was: int, to: int) -> Operation[None]:
    """Move the jobs *ids* from one state to another that only their shares count."""
    if not ids:
        return
    encoded = msgspec.json.encode(ids).decode()
    rows = yield ask("jobs_by_id", queue_id=state.queue_id, ids=encoded)
    shifts = Shifts()
    for _, key, *_ in rows:
        shifts.move(key, was, to)
    yield ask("move_jobs", queue_id=state.queue_id, ids=encoded, to=to)
    yield from shifts.apply(state)
    state.is_changed = True
