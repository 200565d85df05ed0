"""Admitting the submits that wait for a place in a shared pool: first come, first served."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from harn.storage.operations import Operation, ask
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_records import PARKED, READY
from harn.storage.queue.parked_jobs import move_jobs
from harn.storage.queue.pool_records import PoolSettings, Totals
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.settle import read_bodies
from harn.topics import queue_topics


def admit_blocked(
    state: QueueState, settings: PoolSettings, totals: Totals
) -> Operation[list[int]]:
    """Queue the submits that have waited longest, as far as there are places; change *totals*.

    Tasks that were submitted together are queued together, and nothing overtakes them. If the cap
    was lowered meanwhile so that they never fit, they are queued once the pool is empty.
    """
    depth = settings.max_depth
    if not totals.blocked or depth is None:
        return []
    slots = settings.max_concurrent
    after = totals.after_starts(slots)
    places = depth - after.queued + slots - after.running
    if places <= 0:
        return []
    is_empty = not (totals.queued or totals.running)
    ids = yield from _whole_submits(state, places, totals.blocked, is_empty)
    if ids:
        note(state, "jobs_admitted", {"job_event_ids": ids})
        yield from move_jobs(state, ids, PARKED, READY)
        totals.queued += len(ids)
        totals.blocked -= len(ids)
    return ids


def _whole_submits(
    state: QueueState, places: int, blocked: int, is_empty: bool
) -> Operation[list[int]]:
    """Return the tasks of the submits that have waited longest and fit into *places* as a whole."""
    limit = min(places + 1, blocked)  # one more than fits tells whether a submit would be cut
    rows = yield ask("pool_blocked", queue_id=state.queue_id, limit=limit)
    ids = [int(id) for (id,) in rows]
    if len(ids) <= places:
        return ids
    together = yield from _together(state, ids)
    fit = places
    while fit and together[fit] is not None and together[fit] == together[fit - 1]:
        fit -= 1
    if fit or not is_empty:
        return ids[:fit]
    rows = yield ask("pool_blocked", queue_id=state.queue_id, limit=blocked)
    ids = [int(id) for (id,) in rows]
    names = yield from _together(state, ids)
    return [id for id, name in zip(ids, names, strict=True) if name == names[0]]


def _together(state: QueueState, ids: Sequence[int]) -> Operation[list[str | None]]:
    """Return for each task the name of the `submit_many` that it belongs to."""
    bodies = yield from read_bodies(queue_topics(state.name).jobs, ids)
    return [_name_of(bodies[id]) for id in ids]


def _name_of(body: bytes) -> str | None:
    try:
        return _read_together(body).together
    except msgspec.DecodeError:  # a damaged record, which a claim reports
        return None


class _Together(msgspec.Struct):
    """The field of a task's record that tasks of one submit share."""

    together: str | None = None


_read_together = msgspec.json.Decoder(_Together).decode
