"""A queue's log as columns: its jobs, and each step of their lives in the order of the log.

A million jobs are three million records. A history keeps what scheduling needs of them in arrays,
so that it fits into memory and is passed quickly to another process. It is built from rows of the
log (`history_builder.py`), and only read after that.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

import msgspec

from harn.workers.scheduler_policy import SchedulerPolicy

ENTER, CLAIM, ACK, FAIL, RELEASE, DEAD, CANCEL, PURGE, RETRY, RENEW, WAKE = range(11)
PARK, UNPARK, PAUSE, RESUME, KEYS, POLICY = range(11, 17)

Origin = tuple[str | None, str | None, str | None]
"""A job's tenant, binding and trigger."""
Keys = tuple[str, int, str, str]
"""What a queue's keys are, their cap, what a pick costs, and what separates names in a path."""
UNKNOWN = -1
"""No job, no duration, no time."""


class Attempt(msgspec.Struct, array_like=True):
    """One recorded attempt at a job: how long it took, and what followed."""

    duration: int = UNKNOWN
    again_after: int = UNKNOWN
    """Milliseconds from its end until the job was ready again; UNKNOWN if it was settled."""
    is_released: bool = False


class QueueHistory:
    """Jobs are numbered in the order in which they entered; `step_job` and others use numbers."""

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.entered: array[int] = array("q")
        self.due: array[int] = array("q")
        """When a job may be claimed at the earliest."""
        self.priority: array[int] = array("b")
        self.cost: array[float] = array("d")
        self.real_cost: array[float] = array("d")
        """What each job really cost, where an attempt's end tells; else what was expected."""
        self.origin: array[int] = array("l")
        self.origins: list[Origin] = []
        self.duration: array[int] = array("q")
        """Of each job's first attempt; UNKNOWN if it had none, or none that ended."""
        self.again_after: array[int] = array("q")
        self.is_released: array[int] = array("b")
        self.more: dict[int, list[Attempt]] = {}
        """The attempts after the first one, of jobs that had any."""
        self.step_kind: array[int] = array("b")
        self.step_at: array[int] = array("q")
        self.step_job: array[int] = array("l")
        self.step_more: array[int] = array("q")
        """Of a claim its number; of a failure or a release when the job is due again."""
        self.step_charge: array[int] = array("q")
        """What an attempt is charged in the end, in millionths; UNKNOWN: what its claim was."""
        self.claim_consumer: array[int] = array("l")
        self.claim_round: array[int] = array("q")
        self.claim_charged: array[int] = array("q")
        """What a claim was charged, in millionths; UNKNOWN if it cost one credit."""
        self.claim_credit: array[float] = array("d")
        """In millionths where the claim was charged by cost, and a round's grant with it."""
        self.claim_refill: array[int] = array("q")
        self.claim_promoted: array[int] = array("b")
        self.claim_path: array[int] = array("q")
        """Where a claim's path begins in `paths`; UNKNOWN if its key was no path."""
        self.paths: array[int] = array("q")
        """Round, credit and refill of each level, in millionths, for each claim in a tree."""
        self.consumers: list[str] = []
        self.policies: list[SchedulerPolicy] = []
        self.keys: list[Keys] = []
        self.tenants: list[str | None] = []
        """What pauses and resumptions were about, in their order; None is the whole queue."""

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.ids)

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return len(self.step_kind)

    def attempt(self, job: int, number: int) -> Attempt | None:
        """Return a job's attempt, counted from 0; None if it had no such attempt."""
        if number == 0:
            if self.duration[job] == UNKNOWN:
                return None
            return Attempt(self.duration[job], self.again_after[job], bool(self.is_released[job]))
        more = self.more.get(job, ())
        return more[number - 1] if number <= len(more) else None

    def path(self, claim: int, levels: int) -> Sequence[Sequence[int]]:
        """Return round, credit and refill of each level of a claim that was made in a tree."""
        first, paths = self.claim_path[claim], self.paths
        return [paths[first + 3 * level : first + 3 * level + 3] for level in range(levels)]

    def first_step(self, since: int) -> int:
        """Return the first step at or after a time."""
        return bisect_left(self.step_at, since)

    def usual_durations(self) -> dict[int, int]:
        """Return the median duration of a first attempt by origin, and of all under UNKNOWN."""
        found: dict[int, list[int]] = {}
        for origin, duration in zip(self.origin, self.duration, strict=True):
            if duration != UNKNOWN:
                found.setdefault(origin, []).append(duration)
        usual = {origin: int(median(each)) for origin, each in found.items()}
        usual[UNKNOWN] = int(median(usual.values())) if usual else 0
        return usual
