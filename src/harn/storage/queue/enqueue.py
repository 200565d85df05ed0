"""Enqueueing: jobs enter a queue with their records, their rows, their dedupe keys and tickets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter
from typing import Any

from harn.storage.contract import APPEND, Draft
from harn.storage.log import append
from harn.storage.operations import Operation, Row, ask_last, ask_many
from harn.storage.queue.dedupe_keys import bind_dedupe_key, without_duplicates
from harn.storage.queue.gathered_records import queue_headers
from harn.storage.queue.job_index import GROW_COLUMNS
from harn.storage.queue.job_records import (
    PARKED,
    READY,
    SCHEDULED,
    JobDraft,
    dedupe_key_of,
    share_key,
)
from harn.storage.queue.queue_row import QueueState, set_alarm
from harn.storage.queue.share_tree import shift_tree
from harn.storage.queue.single_statements import without_nulls
from harn.topics import WORKER_QUEUES, queue_topics

ENTER = "work_enter"
ENTER_ONE = "work_enter_one"
JOB_KIND = "trigger_dispatch"
JOB_COLUMNS = (
    *("queue_id", "id", "key", "priority", "state", "enqueued_at", "wake_at"),
    *("max_attempts", "tenant_id", "binding_key", "trigger_id", "function", "cost"),
)
_COLUMNS = attrgetter(
    *("payload", "headers", "priority", "max_attempts"),
    *("tenant_id", "binding_key", "trigger_id", "function", "cost"),
)
_EXTRAS = attrgetter("dedupe_key", "not_before_ms", "delay_ms", "ticket")
_PLAIN = {(None, None, None, None)}
"""The extras of jobs of which nothing but their queue decides when and whether they enter."""


def enter_at_once(
    queue: str, dimension: str, jobs: Sequence[JobDraft], drafts: Sequence[Draft]
) -> Operation[list[tuple[int, bool]] | None]:
    """Enter plain *jobs* in one statement, where the engine has it; None if nothing was done.

    The queue's row says whether *dimension* is still the one that makes its keys, and whether the
    queue is paused, belongs to a pool or has jobs in the outbox: then nothing is done, either.
    """
    if set(map(_EXTRAS, jobs)) != _PLAIN:
        return None
    if len(jobs) == 1:
        fill = partial(_values, queue, dimension, jobs[0])
        rows = yield ask_last(ENTER_ONE, fill, drafts=drafts)
    else:
        fill = partial(_columns, queue, dimension, jobs)
        rows = yield ask_last(ENTER, fill, drafts=drafts)
    if rows is None:
        return None
    newest: int = rows[0][0]
    return [(id, False) for id in range(newest - len(jobs) + 1, newest + 1)]


def _values(queue: str, dimension: str, job: JobDraft) -> Mapping[str, Any]:
    """Return the parameters of the statement that enters one job."""
    return {
        "queue": queue,
        "believed": dimension,
        "name": queue_topics(queue).jobs,
        "kind": JOB_KIND,
        "payload": job.payload,
        "headers": job.headers,
        "key": share_key(dimension, job.tenant_id, job.binding_key, job.trigger_id),
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "tenant_id": job.tenant_id,
        "binding_key": job.binding_key,
        "trigger_id": job.trigger_id,
        "function": job.function,
        "cost": job.cost,
        "need": job.need,
    }


def _columns(queue: str, dimension: str, jobs: Sequence[JobDraft]) -> Mapping[str, Any]:
    """Return the parameters of the statement that enters *jobs*."""
    columns = zip(*map(_COLUMNS, jobs), strict=True)
    payload, headers, priority, attempts, tenants, bindings, triggers, functions, costs = columns
    keys = list(map(share_key, repeat(dimension), tenants, bindings, triggers))
    shares = sorted(Counter(keys).items())
    return {
        "queue": queue,
        "believed": dimension,
        "name": queue_topics(queue).jobs,
        "kind": JOB_KIND,
        "largest": max(map(len, payload)),
        "payload": payload,
        "headers": _one_if_alike(headers),
        "key": keys,
        "priority": _one_if_alike(priority),
        "max_attempts": _one_if_alike(attempts),
        "tenant_id": without_nulls(tenants),
        "binding_key": without_nulls(bindings),
        "trigger_id": without_nulls(triggers),
        "function": without_nulls(functions),
        "cost": without_nulls(costs),
        "share": [key for key, _ in shares],
        "ready": [count for _, count in shares],
        "needs": sorted({job.need for job in jobs}),
    }


def _one_if_alike(column: Sequence[Any]) -> Sequence[Any]:
    """Return *column*, or its first value if all are equal to that."""
    return column[:1] if column.count(column[0]) == len(column) else column


def enter_jobs(
    state: QueueState, jobs: Sequence[JobDraft], drafts: Sequence[Draft], dedupe_ms: int
) -> Operation[list[tuple[int, bool]]]:
    """Enter *jobs*, whose records are *drafts*; return ids, and whether each was there already."""
    if set(map(dedupe_key_of, jobs)) <= {None}:
        ids = yield from _append_jobs(state, jobs, drafts)
        return [(id, False) for id in ids]
    places, fresh = yield from without_duplicates(state, jobs, dedupe_ms)
    ids = []
    if fresh:
        ids = yield from _append_jobs(state, fresh, job_drafts(state.name, fresh))
    return [(ids[-place - 1] if place < 0 else place, again) for place, again in places]


def _append_jobs(
    state: QueueState, jobs: Sequence[JobDraft], drafts: Sequence[Draft]
) -> Operation[list[int]]:
    if state.is_new:
        seen = Draft(WORKER_QUEUES, "queue_seen", queue_headers(state.name), b"{}")
        state.drafts.append(seen)
        state.is_new = False
    landed = state.ahead.pop(APPEND, None)
    if landed is None:
        landed = yield from append(drafts)
    entered = [(id, at, job) for (id, at), job in zip(landed, jobs, strict=True)]
    yield from index_jobs(state, entered)
    return [id for id, _, _ in entered]


def index_jobs(state: QueueState, jobs: Sequence[tuple[int, int, JobDraft]]) -> Operation[None]:
    """Add *jobs*, each with its id and time, to the index, with their tickets and dedupe keys."""
    yield from _add_jobs(state, jobs)
    tickets: list[tuple[str, int]] = []
    for id, _, job in jobs:
        if job.ticket is not None:
            tickets.append((job.ticket, id))
        if job.dedupe_key is not None:
            yield bind_dedupe_key(state, job.tenant_id, job.dedupe_key, id)
    if tickets:
        yield from bind_tickets(state, tickets)


def _add_jobs(state: QueueState, jobs: Sequence[tuple[int, int, JobDraft]]) -> Operation[None]:
    """Enter new jobs, given as (id, time of enqueueing, draft)."""
    rows: list[Row] = []
    ready: Counter[str] = Counter()
    scheduled: Counter[str] = Counter()
    parked: Counter[str] = Counter()
    first_at: dict[str, int] = {}
    needs: set[str] = set()
    soonest: int | None = None
    queue_id, dimension = state.queue_id, state.dimension
    is_paused = state.paused is not None
    rotates, rounds = state.rotates, dict[str, int]()
    for id, at, job in jobs:
        key = share_key(dimension, job.tenant_id, job.binding_key, job.trigger_id)
        needs.add(job.need)
        wakes = job.not_before_ms if job.delay_ms is None else at + job.delay_ms
        if wakes is not None and wakes <= at:
            wakes = None
        state_now = READY if wakes is None else SCHEDULED
        if is_paused and wakes is None:
            state_now = state.ready_for(job.tenant_id)
        if wakes is not None:
            scheduled[key] += 1
            soonest = wakes if soonest is None else min(soonest, wakes)
        elif state_now == PARKED:
            parked[key] += 1
        else:
            ready[key] += 1
            first_at.setdefault(key, at)
            if rotates:  # one turn for each job, as in the fold, which sees one job at a time
                rounds.setdefault(key, state.next_turn())
        origin = (job.tenant_id, job.binding_key, job.trigger_id, job.function)
        rows.append(
            (
                *(queue_id, id, key, job.priority, state_now, at, wakes, job.max_attempts),
                *(*origin, job.cost),
            )
        )
    yield ask_many("insert_jobs", JOB_COLUMNS, rows)
    shares: list[Row] = [
        (
            *(queue_id, key, ready[key], scheduled[key], rounds.get(key, state.round)),
            *(first_at.get(key, at), state.cap, state.deferrals, parked[key]),
        )
        for key in sorted({*ready, *scheduled, *parked})
    ]
    yield ask_many("grow_shares", GROW_COLUMNS, shares)
    if state.hierarchy:
        yield from shift_tree(state, [(key, count, 0) for key, count in ready.items()])
    yield ask_many(
        "note_triggers", ("queue_id", "trigger_id"), [(queue_id, each) for each in sorted(needs)]
    )
    if soonest is not None:
        set_alarm(state, soonest)


def bind_tickets(state: QueueState, tickets: Iterable[tuple[str, int]]) -> Operation[None]:
    """Store tickets, given as (ticket, job's id)."""
    rows: list[Row] = [(state.queue_id, each, id) for each, id in tickets]
    yield ask_many("bind_tickets", ("queue_id", "ticket", "job_id"), rows)


def job_drafts(queue: str, jobs: Sequence[JobDraft]) -> list[Draft]:
    """Return the records of *jobs*."""
    topic = queue_topics(queue).jobs
    return [Draft(topic, JOB_KIND, job.payload, job.headers) for job in jobs]
