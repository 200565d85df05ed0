"""The mirror of a shared pool in one process: its tasks, and what each of them does.

The store has the truth. The mirror is updated by the answers to this process's own
operations and by what `shared_follow.py` reads, so it is at most a second old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from harn.pools.task import PoolTask

Waiting = Literal["queued", "running", "blocked"]
"""What a task does that has not ended."""
ENDED_BEYOND_RETENTION = 1000
"""Ended tasks that are known beyond those that retention keeps, before they are forgotten."""


class Mirror:
    """Every task that this process knows, by its id in the store."""

    __slots__ = ("_watches", "asked", "blocked", "by_id", "counts", "states")

    def __init__(self) -> None:
        self.by_id: dict[int, PoolTask] = {}
        self.states: dict[int, Waiting] = {}
        """The tasks that have not ended."""
        self.counts: dict[Waiting, int] = {"queued": 0, "running": 0, "blocked": 0}
        self.blocked: BlockedHere = BlockedHere()
        self.asked: set[int] = set()
        """Tasks that are to be cancelled as soon as they hold a slot for this process."""
        self._watches: list[set[int]] = []

    def place(self, task: PoolTask, id: int, state: Waiting) -> None:
        """Note that the store knows *task* by *id*."""
        task._own_extras().ticket = id
        self.by_id[id] = task
        self.note(id, state)

    def note(self, id: int, state: Waiting | None) -> None:
        """Note what a task does; None when it has ended."""
        for watch in self._watches:
            watch.add(id)
        before = self.states.pop(id, None)
        if before is not None:
            self.counts[before] -= 1
        if state is None:
            self.asked.discard(id)
        else:
            self.states[id] = state
            self.counts[state] += 1
        blocked = self.blocked
        blocked.count = self.counts["blocked"]
        if blocked.callers and (before == "blocked" or state != "blocked"):
            blocked.wake(id)

    @contextmanager
    def watched(self) -> Iterator[set[int]]:
        """Gather the tasks of which something was noted inside the block."""
        changed: set[int] = set()
        self._watches.append(changed)
        try:
            yield changed
        finally:
            # By identity: the set of another read may be equal.
            self._watches = [watch for watch in self._watches if watch is not changed]

    def is_blocked(self, id: int) -> bool:
        """Tell whether a submit waits for a place."""
        return self.states.get(id) == "blocked"

    def queued(self) -> Iterable[PoolTask]:
        """Return the tasks that are queued."""
        return (self.by_id[id] for id, state in self.states.items() if state == "queued")

    def waiting_ids(self) -> list[int]:
        """Return the tasks that have not ended, by id."""
        return list(self.states)

    def tasks(self) -> list[PoolTask]:
        """Return every task, in the order of submit."""
        return [self.by_id[id] for id in sorted(self.by_id)]

    def pending(self) -> list[PoolTask]:
        """Return the queued tasks in the order of submit, then the running ones."""
        placed = [(state, self.by_id[id]) for id, state in sorted(self.states.items())]
        running = [task for state, task in placed if state == "running"]
        return [task for state, task in placed if state != "running"] + running

    def forget_ended(self, kept: Iterable[PoolTask], most: int) -> None:
        """Forget ended tasks but those *kept*, of which there are at most so many."""
        if len(self.by_id) <= 2 * most + ENDED_BEYOND_RETENTION:
            return
        ids = {task._extras.ticket for task in kept}
        self.by_id = {id: task for id, task in self.by_id.items() if id in ids or id in self.states}


class BlockedHere:
    """The submits of the pool that wait for a place, and the callers here that wait for theirs."""

    __slots__ = ("callers", "count")

    def __init__(self) -> None:
        self.count: int = 0
        """How many submits wait, in all processes."""
        self.callers: dict[int, list[asyncio.Future[None]]] = {}

    def wake(self, id: int) -> None:
        """Wake the callers whose submit *id* waits no more."""
        for caller in self.callers.pop(id, ()):
            if not caller.done():
                caller.set_result(None)

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """End the wait of each caller with an exception of its own."""
        for callers in self.callers.values():
            for caller in callers:
                if not caller.done():
                    caller.set_exception(error())

    def hold_places(self, free: int) -> None:
        """Do nothing: the store decides which submit gets a place."""
