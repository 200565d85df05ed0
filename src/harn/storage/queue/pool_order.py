"""Which queued task of a shared pool gets the next slot, decided inside the claim's transaction.

The tasks are looked at in the pool's order, as many as there are free slots. One that this process
can run is claimed. One that only another living process can run keeps its slot free for that
process, which is told by the commit. A call that no living process can run is passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from harn.storage.operations import Ask, Operation, ask, ask_ahead
from harn.storage.queue.job_records import Choice, Pick
from harn.storage.queue.pool_records import PRIORITY_WIDTH, ROTATION, Order, PoolClaim, PoolSettings
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.share_turns import Share
from harn.topics import queue_topics

MOST_STARTS = 1000
"""Slots that one operation fills at most."""
_AHEAD = {ROTATION: "pool_turns_seen", "by_key": "pool_names_seen"}
_KEYS = {ROTATION: "pool_keys_by_turn", "by_key": "pool_keys_by_name"}
"""The questions for the keys of a pool by its order, ahead and later."""

Found = tuple[Any, ...]
"""A queued task: id, key, enqueued at, attempts, most attempts, function, lease, record."""


def keys_ahead(queue: str, order: Order) -> list[Ask]:
    """Return what is asked ahead of the choice of tasks in this order."""
    return [ask_ahead(_AHEAD[order], queue=queue, limit=MOST_STARTS)] if order in _AHEAD else []


def _keys(state: QueueState, order: Order) -> Operation[Any]:
    """Return the shares that have queued tasks, in the pool's order."""
    rows = state.ahead.pop(_AHEAD[order], None)
    if rows is None:
        rows = yield ask(_KEYS[order], queue_id=state.queue_id, limit=MOST_STARTS)
    return rows


def choose_tasks(
    state: QueueState, settings: PoolSettings, claim: PoolClaim, free: int
) -> Operation[Choice]:
    """Choose the tasks that *claim* takes for *free* slots, in the pool's order."""
    runnable = _RunnableTasks(state, claim)
    free = min(free, MOST_STARTS)
    if settings.order == ROTATION:
        return (yield from _in_rotation(state, runnable, claim, free))
    if settings.order == "by_key":
        found = yield from _by_key(state, runnable, free)
    else:
        found = list((yield from runnable.ask(f"pool_{settings.order}", free)))
    picks = [_pick(row) for row in found if _is_ours(row, claim)]
    return Choice(picks, state.round, state.last_key, bool(state.promoted), [])


class _RunnableTasks:
    """Asks for queued tasks that a living process can run."""

    def __init__(self, state: QueueState, claim: PoolClaim) -> None:
        runnable = sorted(claim.functions | claim.elsewhere)
        self._where = {
            "queue_id": state.queue_id,
            "topic": queue_topics(state.name).jobs,
            "runnable": msgspec.json.encode(runnable).decode(),
            "looked": claim.looked_at,
        }

    def ask(self, name: str, limit: int, **more: Any) -> Operation[Sequence[Found]]:
        return (yield ask(name, limit=limit, **self._where, **more))


def _by_key(state: QueueState, runnable: _RunnableTasks, free: int) -> Operation[list[Found]]:
    """Return the oldest tasks of the highest priorities; a priority may have several shares."""
    rows = yield from _keys(state, "by_key")
    found: list[Found] = []
    for _, shares in groupby([key for key, *_ in rows], lambda key: key[:PRIORITY_WIDTH]):
        if len(found) >= free:
            break
        keys, limit = list(shares), free - len(found)
        if len(keys) == 1:
            found += yield from runnable.ask("pool_of_key", limit, key=keys[0])
        else:
            wanted = msgspec.json.encode(keys).decode()
            found += yield from runnable.ask("pool_of_keys", limit, keys=wanted)
    return found


def _in_rotation(
    state: QueueState, runnable: _RunnableTasks, claim: PoolClaim, free: int
) -> Operation[Choice]:
    """Give each key one slot in its turn; a key with more tasks goes to the end of the line."""
    rows = yield from _keys(state, ROTATION)
    line = deque(Share(*row) for row in rows)
    waiting: dict[str, deque[Found]] = {}
    picks: list[Pick] = []
    served: dict[str, Share] = {}
    round = state.round
    while line and free > 0:
        share = line.popleft()
        if share.key not in waiting:
            waiting[share.key] = deque(
                (yield from runnable.ask("pool_of_key", free, key=share.key))
            )
        if not waiting[share.key]:
            continue
        row = waiting[share.key].popleft()
        free -= 1
        if _is_ours(row, claim):
            picks.append(_pick(row, round))
            share.serve(round, 0, 0)
            round += 1
            served[share.key] = share
        if waiting[share.key]:
            line.append(share)
    return Choice(picks, round, state.last_key, bool(state.promoted), list(served.values()))


def _is_ours(row: Found, claim: PoolClaim) -> bool:
    function, lease = row[5], row[6]
    return lease == claim.lease if function is None else function in claim.functions


def _pick(row: Found, round: int = 0) -> Pick:
    id, key, enqueued_at, attempts, most, _, _, body = row
    body = None if body is None else bytes(body)
    return Pick(id, key, enqueued_at, attempts, most, body, round, 0)
