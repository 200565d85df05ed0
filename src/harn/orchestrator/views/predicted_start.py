"""When a waiting job will probably start, decided from its place and from recent starts.

The estimate is the jobs ahead of it, and itself, at the pace at which its line was served lately.
It is as good as the assumption that the next minutes resemble the last ones, so every text says
"about"; where there is no ground for a number, it says what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harn.clock import iso
from harn.duration import roughly

Kind = Literal["running", "over", "about", "at_least", "unknown"]

LEAST_STARTS = 3
"""Starts of one key below which the whole queue's pace, and the key's part of it, says more."""
SOON_MS = 1_500


@dataclass(frozen=True, slots=True)
class Pace:
    """The jobs of a queue that were started in the last *over_ms*, in all and by key."""

    over_ms: int = 0
    started: int = 0
    by_key: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a job that may be waiting; times are milliseconds."""

    state: str
    now: int
    key: str = ""
    ahead: int | None = 0
    """Jobs that go first in its line; None if they were not counted."""
    most_counted: int = 10_000
    """The bound of *ahead*: as many may be more."""
    part: float = 1.0
    """The part of the queue's starts that its line is entitled to."""
    by_key: bool = False
    """Whether its line is its key's, and not the whole queue's."""
    wake_at: int | None = None
    is_paused: bool = False
    consumers: int = 0
    able: int | None = None
    """Living consumers that know its function; None if it needs none."""


@dataclass(frozen=True, slots=True)
class PredictedStart:
    """When a job will probably start: in words, and *at_ms* where there is an estimate."""

    kind: Kind
    text: str
    at_ms: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Return every field, JSON-ready, the time as text."""
        at = None if self.at_ms is None else iso(self.at_ms)
        return {"kind": self.kind, "text": self.text, "at": at}


def predicted_start(job: Waiting, pace: Pace) -> PredictedStart:
    """Predict when *job* starts, if the jobs ahead of it start at *pace*.

    >>> line = Waiting("ready", now=0, ahead=119, consumers=2)
    >>> predicted_start(line, Pace(over_ms=60_000, started=120)).text
    'about in 1m, at 2 jobs a second'
    """
    if job.state == "claimed":
        return PredictedStart("running", "it is running")
    if job.state not in ("ready", "parked", "scheduled", "failed"):
        return PredictedStart("over", "it does not start again by itself")
    if job.is_paused or job.state == "parked":
        return PredictedStart("unknown", "unknown while paused")
    if not job.consumers:
        return PredictedStart("unknown", "unknown: no consumer of this queue is alive")
    if job.able == 0:
        return PredictedStart("unknown", "unknown: no living consumer knows its function")
    if job.wake_at is not None and job.wake_at > job.now:
        left = roughly(job.wake_at - job.now)
        return PredictedStart("at_least", f"not before its time, in {left}", job.wake_at)
    return _in_line(job, pace)


def _in_line(job: Waiting, pace: Pace) -> PredictedStart:
    if job.ahead is None:
        return PredictedStart("unknown", "unknown: its place was not counted; open the job")
    per_ms = _pace_of_line(job, pace)
    if not per_ms:
        if not pace.over_ms:
            return PredictedStart("unknown", "unknown: no job was started yet")
        return PredictedStart(
            "unknown", f"unknown: no job was started in the last {roughly(pace.over_ms)}"
        )
    wait = round((job.ahead + 1) / per_ms)
    at, speed = job.now + wait, _speed(per_ms)
    if job.ahead >= job.most_counted:
        return PredictedStart("at_least", f"in more than {roughly(wait)}, at {speed}", at)
    if wait < SOON_MS:
        return PredictedStart("about", f"about now, at {speed}", at)
    return PredictedStart("about", f"about in {roughly(wait)}, at {speed}", at)


def _pace_of_line(job: Waiting, pace: Pace) -> float:
    """Return the jobs a millisecond of the job's line; 0 if none was started."""
    if not pace.over_ms:
        return 0.0
    if not job.by_key:
        return pace.started / pace.over_ms
    own = pace.by_key.get(job.key, 0)
    return (own if own >= LEAST_STARTS else pace.started * job.part) / pace.over_ms


def _speed(per_ms: float) -> str:
    """Write a pace in the shortest unit that has at least one job, or in hours.

    >>> _speed(0.002), _speed(1 / 120_000)
    ('2 jobs a second', '30 jobs an hour')
    """
    for unit, ms in (("a second", 1000), ("a minute", 60_000)):
        if per_ms * ms >= 1:
            return _jobs(per_ms * ms, unit)
    return _jobs(per_ms * 3_600_000, "an hour")


def _jobs(number: float, unit: str) -> str:
    shown = f"{number:,.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")
    return f"{shown} job{'' if shown == '1' else 's'} {unit}"
