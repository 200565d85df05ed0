"""One key's row in the table of shares, and its ready jobs."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from harn.storage import Row
from harn.storage.queue import Share

MINUTE_MS = 60_000


class ReadyJobs:
    """Ready jobs of one priority in the order of their numbers; removed ones are passed over."""

    __slots__ = ("_gone", "_jobs")

    def __init__(self) -> None:
        self._jobs: deque[int] = deque()
        self._gone: set[int] = set()

    def add(self, job: int) -> None:
        """Add *job* at its place."""
        jobs = self._jobs
        if job in self._gone:
            self._gone.remove(job)
        elif not jobs or job > jobs[-1]:
            jobs.append(job)
        elif job < jobs[0]:
            jobs.appendleft(job)
        else:
            jobs.insert(bisect_left(jobs, job), job)

    def remove(self, job: int) -> None:
        """Remove *job*, wherever it is."""
        if self._jobs[0] == job:
            self._jobs.popleft()
            self._clean()
        else:
            self._gone.add(job)

    def _clean(self) -> None:
        while self._gone and self._jobs and self._jobs[0] in self._gone:
            self._gone.remove(self._jobs.popleft())

    @property
    def first(self) -> int | None:
        """The first job, if there is one."""
        return self._jobs[0] if self._jobs else None

    def after(self, last: int, limit: int) -> Iterator[int]:
        """Return at most *limit* jobs after the number *last*."""
        jobs = iter(self._jobs)
        if self._jobs and last >= self._jobs[0]:
            jobs = (job for job in self._jobs if job > last)
        if self._gone:
            jobs = (job for job in jobs if job not in self._gone)
        return islice(jobs, limit)


ByPriority = tuple[ReadyJobs, ReadyJobs, ReadyJobs]


def by_priority() -> ByPriority:
    """Return no jobs of each priority."""
    return ReadyJobs(), ReadyJobs(), ReadyJobs()


class KeyShare:
    """A row of the table of shares, with the key's ready jobs by priority."""

    __slots__ = (
        *("credit", "idle_at", "in_flight", "key", "oldest", "others", "ready", "ready_jobs"),
        *("refill", "round", "turn"),
    )

    def __init__(self, key: str) -> None:
        self.key: str = key
        self.ready: int = 0
        self.in_flight: int = 0
        self.others: int = 0
        """Its jobs that are scheduled or parked."""
        self.idle_at: int | None = None
        """Since when it has held no job."""
        self.turn: int | None = None
        self.round: int = 0
        self.credit: Any = 0
        self.refill: int = 0
        self.oldest: int | None = None
        """When its oldest ready job entered, as far as the first job of each priority tells."""
        self.ready_jobs: ByPriority = by_priority()

    def row(self) -> Row:
        """Return the columns that a scheduler reads."""
        return (
            *(self.key, self.ready, self.in_flight, self.turn, self.round, self.credit),
            *(self.refill, self.oldest),
        )

    def debt(self, now: int) -> int:
        """Return its credit if that is less than 0; after a minute without a job, 0: `debt`."""
        is_over = self.idle_at is not None and self.idle_at <= now - MINUTE_MS
        return 0 if is_over else min(0, int(self.credit))

    def accrued(self, round: int) -> int:
        """Return its credit in *round*; no round pays while it has no turn: `accrued`."""
        return self.credit if self.turn is None else self.as_share().accrued(round)

    def as_share(self) -> Share:
        """Return it as the scheduler sees it."""
        return Share(*self.row())

    def turn_after(self, round: int, debt: int) -> int:
        """Return the round in which a key without credit is served, after *round*."""
        return round + 1 + (-debt // self.refill if self.refill else 0)
