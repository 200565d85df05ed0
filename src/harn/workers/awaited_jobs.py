"""The jobs of a queue that callers wait for, and the offset up to which their ends are known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

Ended = asyncio.Future[bytes | None]
"""Resolved when a job is settled: its outcome as JSON; None if its state must be read."""


class Awaited:
    """The jobs of one queue that callers of one runtime wait for."""

    def __init__(self, queue: str, mark: tuple[int, int]) -> None:
        self.queue = queue
        self.mark = mark
        """The growth of the claims before the first look."""
        self.waiters: dict[int, Ended | list[Ended]] = {}
        """The caller of each job; a list where a job has several."""
        self.fresh: list[int] = []
        """Jobs that were not looked at yet."""
        self.watcher: asyncio.Task[None] | None = None
        self.known: int = -1
        """The offset of the claims up to which the jobs' callers know what happened."""
        self.head: int = 0
        """The newest offset of the claims that was seen."""
        self.told: int = 0
        """How many operations of this process have reported which offsets they wrote."""

    def saw(self, head: int, *, all_up_to_here: bool) -> None:
        """Note the newest offset of the claims, and whether all jobs were looked at there."""
        self.head = max(self.head, head)
        if all_up_to_here:
            self.known = max(self.known, head)

    def took_part(self, before: int, after: int) -> None:
        """Note the offsets of an operation of this process that has reported all that it did."""
        self.told += 1
        self.head = max(self.head, after)
        if before <= self.known:
            self.known = max(self.known, after)

    @property
    def knows_all(self) -> bool:
        """Whether nothing was seen that the callers do not know."""
        return self.head <= self.known

    def add(self, id: int, woken: Ended) -> None:
        """Let a caller wait for a job, which is looked at first."""
        self.fresh.append(id)
        others = self.waiters.setdefault(id, woken)
        if isinstance(others, list):
            others.append(woken)
        elif others is not woken:
            self.waiters[id] = [others, woken]

    def remove(self, id: int, woken: Ended) -> None:
        """Forget a caller that gave up; it may have been woken already."""
        waiting = self.waiters.get(id)
        if waiting is woken:
            del self.waiters[id]
        elif isinstance(waiting, list) and woken in waiting:
            waiting.remove(woken)
            if not waiting:
                del self.waiters[id]

    def wake(self, id: int, outcome: bytes | None) -> None:
        """Wake the callers that wait for a job; each decodes the outcome for itself."""
        waiting = self.waiters.pop(id, None)
        if isinstance(waiting, list):
            for woken in waiting:
                if not woken.done():
                    woken.set_result(outcome)
        elif waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    def fail(self, error_of: Callable[[int], BaseException]) -> None:
        """End the wait of every caller with the error of its job."""
        for id, waiting in self.waiters.items():
            for woken in waiting if isinstance(waiting, list) else (waiting,):
                if not woken.done():
                    woken.set_exception(error_of(id))
