"""Dedupe keys of jobs: which jobs of an enqueue are new, and which are in the queue already."""

from __future__ import annotations

from collections.abc import Sequence

from harn.storage.operations import Ask, Operation, ask
from harn.storage.queue.job_records import JobDraft, share_key
from harn.storage.queue.queue_row import QueueState


def without_duplicates(
    state: QueueState, jobs: Sequence[JobDraft], dedupe_ms: int
) -> Operation[tuple[list[tuple[int, bool]], list[JobDraft]]]:
    """Return a place for each job, and the new jobs; -1 is the place of the first new job."""
    places: list[tuple[int, bool]] = []
    fresh: list[JobDraft] = []
    met: dict[tuple[str, str], int] = {}
    for job in jobs:
        found: int | None = None
        if job.dedupe_key is not None:
            name = (dedupe_tenant(job.tenant_id), job.dedupe_key)
            found = met.get(name)
            if found is None:
                found = yield from deduped(state, *name, dedupe_ms)
            if found is None:
                met[name] = -len(fresh) - 1
        if found is not None:
            places.append((found, True))
        else:
            fresh.append(job)
            places.append((-len(fresh), False))
    return places, fresh


def deduped(
    state: QueueState, tenant_id: str, dedupe_key: str, dedupe_ms: int
) -> Operation[int | None]:
    """Return the job that holds a dedupe key which still counts."""
    rows = yield ask(
        "find_dedupe", queue_id=state.queue_id, tenant_id=tenant_id, dedupe_key=dedupe_key
    )
    if not rows:
        return None
    job_id, settled_at, known = rows[0]
    fresh = settled_at is None or settled_at + dedupe_ms > state.now
    return int(job_id) if known and fresh else None


def bind_dedupe_key(state: QueueState, tenant_id: str | None, dedupe_key: str, job_id: int) -> Ask:
    """Ask for the dedupe key of a new job to lead to it."""
    return ask(
        "bind_dedupe",
        queue_id=state.queue_id,
        tenant_id=dedupe_tenant(tenant_id),
        dedupe_key=dedupe_key,
        job_id=job_id,
    )


def dedupe_tenant(tenant_id: str | None) -> str:
    """Return the tenant part of a dedupe key; without a tenant, a name that no tenant can have."""
    return share_key("tenant", tenant_id, None, None)
