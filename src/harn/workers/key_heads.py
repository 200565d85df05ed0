"""A key's share and its next jobs: what a scheduler knows of one key, read when it is needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from harn.storage import Ask, Operation, Row, ask
from harn.storage.queue import Board, Share
from harn.topics import queue_topics

QUARTER_HOUR_MS = 15 * 60 * 1000
CHUNK = 100
"""How many shares or jobs are read at once, at most."""

Head = tuple[int, int, int, int, int | None, bytes | None]
"""A job as the scheduler sees it: its id, when it was enqueued, its attempts, their limit, its cost
in millionths (None: 1), and its record if it was short enough to be read with it."""


def rank(priority: int, age_ms: int) -> int:
    """Return the rank of a job of *priority* (0 high, 1 normal, 2 low) after waiting *age_ms*.

    Every quarter of an hour lifts it by one, up to high.

    >>> rank(1, 14 * 60_000), rank(1, 15 * 60_000), rank(2, 15 * 60_000), rank(2, 30 * 60_000)
    (1, 0, 1, 0)
    """
    return max(0, priority - max(0, age_ms) // QUARTER_HOUR_MS)


class Lane:
    """A share that has been read and, once they are needed, its next jobs of each priority."""

    __slots__ = ("full", "heads", "is_loaded", "last_taken", "more", "only", "served", "share")

    def __init__(self, share: Share, full: int) -> None:
        self.share: Share = share
        self.full: int = full
        self.heads: tuple[deque[Head], deque[Head], deque[Head]] = (deque(), deque(), deque())
        self.more: list[bool] = [True, True, True]
        self.last_taken: list[int] = [0, 0, 0]
        self.is_loaded: bool = False
        self.only: int | None = None
        """The priority of all its jobs, if they have one and were read."""
        self.served: int = 0

    def loaded(self, depth: int) -> None:
        """Note that the first *depth* jobs of each priority have been read."""
        self.is_loaded = True
        self.more = [len(heads) == depth for heads in self.heads]
        present = [priority for priority in range(3) if self.heads[priority]]
        self.only = present[0] if len(present) == 1 else None

    @property
    def is_open(self) -> bool:
        """Whether the key is under its cap and, as far as is known, has a job for this claimer."""
        return self.share.turn is not None and (any(self.heads) or any(self.more))

    @property
    def lacks(self) -> int | None:
        """A priority of which more jobs must be read before the next one is known; None if none."""
        for priority in range(3):
            if not self.heads[priority] and self.more[priority]:
                return priority
        return None

    def age(self) -> tuple[int, str]:
        """Return the order of promotions: the oldest job's time, then the key.

        Until every priority has been read it is the earliest time possible.
        """
        known = self.is_loaded and self.lacks is None
        return self.oldest()[1] if known else self.share.oldest_at or 0, self.share.key

    def oldest(self) -> Head:
        """Return the job that has waited longest, whatever its priority."""
        return min((heads[0] for heads in self.heads if heads), key=_by_age)

    def best(self, now: int) -> Head:
        """Return the job that is next by rank, then age."""
        chosen: Head | None = None
        best_rank = 3
        for priority, heads in enumerate(self.heads):
            if heads:
                head = heads[0]
                lifted = rank(priority, now - head[1])
                if lifted < best_rank or (lifted == best_rank and chosen and head < chosen):
                    chosen, best_rank = head, lifted
        assert chosen is not None
        return chosen

    def take(self, head: Head) -> None:
        """Remove *head*, the first of its priority."""
        for priority, heads in enumerate(self.heads):
            if heads and heads[0] == head:
                heads.popleft()
                self.last_taken[priority] = head[0]
                return
        raise AssertionError("not at the head")


def read_heads(board: Board, lanes: Sequence[Lane], depth: int) -> Operation[None]:
    """Read the first *depth* jobs of each priority of *lanes*."""
    by_key = {lane.share.key: lane for lane in lanes}
    rows: list[Row] | None = yield Ask(
        "ready_heads",
        {
            "queue_id": board.queue_id,
            **about(board),
            "depth": depth,
            "keys": msgspec.json.encode([*by_key]).decode(),
        },
        is_optional=True,
    )
    if rows is None:
        rows = yield from _heads_by_key(board, [*by_key], depth)
    for row in rows:
        by_key[row[0]].heads[row[1]].append(row[2:])
    for lane in lanes:
        lane.loaded(depth)


def read_more(board: Board, lane: Lane, left: int) -> Operation[None]:
    """Read more jobs of each priority of which none is known."""
    while (priority := lane.lacks) is not None:
        depth = min(CHUNK, 1 + max(1, left))
        rows = yield ask(
            "ready_after",
            key=lane.share.key,
            priority=priority,
            after=lane.last_taken[priority],
            depth=depth,
            queue_id=board.queue_id,
            **about(board),
        )
        lane.heads[priority].extend(rows)
        lane.more[priority] = len(rows) == depth


def _heads_by_key(board: Board, keys: Sequence[str], depth: int) -> Operation[list[Row]]:
    """List the first ready jobs of *keys*, one priority after the other."""
    wanted = {"queue_id": board.queue_id, "depth": depth, **about(board)}
    rows: list[Row] = []
    present = yield ask("ready_priorities", queue_id=board.queue_id)
    for (priority,) in present:
        if len(keys) == 1:
            found = yield ask("ready_after", key=keys[0], priority=priority, after=0, **wanted)
            rows += [(keys[0], priority, *row) for row in found]
        else:
            many = msgspec.json.encode(keys).decode()
            found = yield ask("ready_of_keys", keys=many, priority=priority, **wanted)
            rows += [(row[0], priority, *row[1:]) for row in found]
    return rows


def about(board: Board) -> dict[str, Any]:
    """Return the parameters of every statement that reads jobs."""
    topic = queue_topics(board.queue).jobs
    return {"queue": board.queue, "topic": topic, "triggers": board.triggers}


def _by_age(head: Head) -> tuple[int, int]:
    return head[1], head[0]
