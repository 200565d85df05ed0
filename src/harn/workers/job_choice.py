"""Which job a queue serves next: the oldest (`fifo`), or one of the key in its turn (`drr`)."""

from __future__ import annotations

from functools import partial

from harn.storage import Ask, Operation, Row, ask, ask_ahead
from harn.storage.queue import Board, Choice, Choose, Pick
from harn.topics import queue_topics
from harn.workers import fairshare
from harn.workers.fairshare import choose_in_turn
from harn.workers.fairshare_tree import choose_in_tree
from harn.workers.key_heads import about, rank
from harn.workers.scheduler_policy import SchedulerPolicy

HEADS = "queue_heads"


def chooser(policy: SchedulerPolicy) -> Choose:
    """Return the function that chooses jobs by *policy*."""
    if policy.strategy == "fifo":
        return partial(_fifo, policy)
    return partial(choose_in_turn if policy.hierarchy is None else choose_in_tree, policy)


def first_look(policy: SchedulerPolicy, queue: str, wanted: int) -> Ask:
    """Return the question to ask ahead for a claim of *wanted* jobs by *policy*."""
    which = {"queue": queue, "topic": queue_topics(queue).jobs, "triggers": None, "wanted": wanted}
    if policy.strategy == "drr" and not policy.hierarchy:
        return ask_ahead(fairshare.LOOK, limit=fairshare.KEYS_AT_ONCE + 1, **which)
    return ask_ahead(HEADS, **which)


def _fifo(
    policy: SchedulerPolicy, board: Board, wanted: int, seen: list[Row] | None = None
) -> Operation[Choice]:
    rows = seen
    if rows is None:
        rows = yield ask(HEADS, wanted=wanted, **about(board))
    now = board.now
    rows.sort(key=lambda row: (rank(row[0], now - row[2]), row[1]))
    picks = [
        Pick(id, key, at, attempts, most, body, board.round, 0)
        for _, id, at, key, attempts, most, body in rows[:wanted]
    ]
    return Choice(picks, board.round, board.last_key, board.promoted, [])
