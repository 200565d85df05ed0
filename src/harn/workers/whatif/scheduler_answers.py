"""The real scheduler, asked for its next picks from a queue's tables in memory.

A scheduler (`fairshare.py`) asks a store for shares and jobs by the names of statements. Here the
same questions are answered from dicts and deques; those about a tree in `tree_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from harn.storage import Ask, Rows
from harn.storage.queue import Board, Choice
from harn.workers import fairshare
from harn.workers.whatif.key_share import KeyShare
from harn.workers.whatif.queue_tables import NONE, QueueTables


def choose(tables: QueueTables, now: int, wanted: int) -> Choice:
    """Ask the scheduler of *tables* for at most *wanted* jobs; nothing is changed."""
    policy = tables.policy
    board = Board(
        queue="what-if",
        queue_id=1,
        now=now,
        dimension=policy.fairness_key,
        cap=tables.cap,
        policy=None,
        round=tables.round,
        last_key=tables.last_key,
        promoted=tables.promoted,
    )
    seen: Rows | None = None
    if tables.is_fifo:
        seen = _queue_heads(tables, wanted)
    elif tables.tree is None:
        seen = _open_shares_and_jobs(tables, wanted)
    operation = tables.scheduler(board, wanted, seen)
    try:
        asked = next(operation)
        while True:
            asked = operation.send(_answer(tables, asked))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _answer(tables: QueueTables, asked: Ask) -> Any:
    if asked.parts:
        return [_answer(tables, each) for each in asked.parts]
    answer = ANSWERS.get(asked.name)
    if answer is None:
        return getattr(tables.tree, asked.name)(**asked.params)
    return answer(tables, **asked.params)


def _open_shares_and_jobs(tables: QueueTables, wanted: int, **_: Any) -> Rows:
    limit = fairshare.KEYS_AT_ONCE + 1
    if len(tables.open) >= limit:
        age = tables.policy.starvation_age_ms
        found = tables.open.oldest(limit) if age else tables.open.some(limit)
        return [(*share.row(), None) for share in found]
    if not tables.open:
        return []
    depth = 1 + max(1, -(-wanted // len(tables.open)))
    following = tables.open.following(tables.round, tables.last_key) if wanted == 1 else None
    rows: Rows = []
    for share in tables.open.values():
        if following is None or share is following:
            rows += _with_jobs(tables, share, depth)
        else:
            rows.append((*share.row(), None))
    return rows


def _with_jobs(tables: QueueTables, share: KeyShare, depth: int) -> Rows:
    """Return a row for each of the first jobs of a share, or one without a job."""
    row, entered = (*share.row(), depth), tables.entered
    rows: Rows = [
        (*row, priority, job + 1, entered[job], 0, 0, tables.cost_of(job), None)
        for priority, jobs in enumerate(share.ready_jobs)
        for job in jobs.after(NONE, depth)
    ]
    return rows or [(*row, None)]


def _starving_shares(tables: QueueTables, before: int, limit: int, **_: Any) -> Rows:
    found = [share for share in tables.open.oldest(limit) if (share.oldest or 0) <= before]
    return [share.row() for share in found]


def _open_keys(tables: QueueTables, limit: int, **_: Any) -> Rows:
    return [(key,) for key in islice(tables.open, limit)]


def _shares_ahead(tables: QueueTables, turn: int, limit: int, **_: Any) -> Rows:
    found = [share for share in tables.open.values() if (share.turn or 0) >= turn]
    found.sort(key=lambda share: (share.turn or 0, share.key))
    return [share.row() for share in found[:limit]]


def _shares_in_turn_and_jobs(
    tables: QueueTables, turn: int, after: str, until: str, limit: int, wanted: int, **_: Any
) -> Rows:
    found = tables.open.in_turn(turn, after, until, limit)
    depth = 1 + max(1, -(-wanted // max(1, len(found))))
    return [row for share in found for row in _with_jobs(tables, share, depth)]


def _ready_heads(tables: QueueTables, keys: str, depth: int, **_: Any) -> Rows:
    return [
        (key, *row[9:])
        for key in msgspec.json.decode(keys)
        for row in _with_jobs(tables, tables.shares[key], depth)
        if row[9] is not None
    ]


def _ready_after(
    tables: QueueTables, key: str, priority: int, after: int, depth: int, **_: Any
) -> Rows:
    jobs = tables.shares[key].ready_jobs[priority].after(after - 1, depth)
    return [(job + 1, tables.entered[job], 0, 0, tables.cost_of(job), None) for job in jobs]


def _queue_heads(tables: QueueTables, wanted: int, **_: Any) -> Rows:
    return [
        (priority, job + 1, tables.entered[job], tables.key_of(job), 0, 0, None)
        for priority, jobs in enumerate(tables.in_order)
        for job in jobs.after(NONE, wanted)
    ]


ANSWERS: dict[str, Callable[..., Rows]] = {
    "open_shares_and_jobs": _open_shares_and_jobs,
    "starving_shares": _starving_shares,
    "open_keys": _open_keys,
    "shares_ahead": _shares_ahead,
    "shares_in_turn_and_jobs": _shares_in_turn_and_jobs,
    "ready_heads": _ready_heads,
    "ready_after": _ready_after,
    "queue_heads": _queue_heads,
}
"""The answer to each question about a queue whose keys are not paths, by its statement's name."""
