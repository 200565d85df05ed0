"""The options of every verb of a service, and how a verb reports its progress.

They stand apart from the verbs, because a command that asks a running service needs only these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Tell = Callable[[str], None]
"""Receives a line of progress."""

WORK_WITHIN = 30.0
LONGEST_WAIT = 86_400.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a verb: the names in its path and the fields of its body."""


class DispatchOptions(Options, frozen=True, kw_only=True):
    """Options of a verb that dispatches."""

    work_within: float = WORK_WITHIN
    """Seconds that the pool tasks caused by this may take."""

    def __post_init__(self) -> None:
        if not 0 < self.work_within <= LONGEST_WAIT:
            raise ValueError(f"work_within is more than 0 and at most {LONGEST_WAIT:,.0f} seconds")


class Fire(DispatchOptions, frozen=True, kw_only=True):
    """Fire *trigger* with *payload*, for *tenant*."""

    trigger: str
    payload: Any = None
    tenant: str | None = None


class Replay(DispatchOptions, frozen=True, kw_only=True):
    """Dispatch *event* again, to *trigger* or to all triggers that it reached."""

    event: str
    trigger: str | None = None


class ReplayLetter(DispatchOptions, frozen=True, kw_only=True):
    """Dispatch the dead letter *letter* again."""

    letter: str


class DiscardLetter(Options, frozen=True, kw_only=True):
    """Discard the dead letter *letter*."""

    letter: str
    reason: str | None = None


class Drain(DispatchOptions, frozen=True, kw_only=True):
    """Drain *queue* until it is empty."""

    queue: str
    consumer_id: str | None = None
    claim_ttl: float = 300.0
    concurrency: int = 1
    wait: bool = False
    """Wait for more when the queue is empty; a service does that anyway."""


class RetryJob(Options, frozen=True, kw_only=True):
    """Make the dead *job* of *queue* ready again."""

    queue: str
    job: int | str


class CancelJob(RetryJob, frozen=True, kw_only=True):
    """Settle *job* of *queue* as cancelled, for *reason*."""

    reason: str | None = None


class ResumeQueue(Options, frozen=True, kw_only=True):
    """Allow claims on *queue*, or on one tenant's jobs in it, again."""

    queue: str
    tenant: str | None = None


class PauseQueue(ResumeQueue, frozen=True, kw_only=True):
    """Stop claims on *queue*, or on one tenant's jobs in it, for *reason*."""

    reason: str | None = None


class OneQueue(Options, frozen=True, kw_only=True):
    """Look at *queue*."""

    queue: str


class ListJobs(OneQueue, frozen=True, kw_only=True):
    """List jobs of *queue* after the id *after*: of a status, of a tenant, or all."""

    status: str | None = None
    tenant_id: str | None = None
    after: int = 0
    limit: int = 100


class OneJob(OneQueue, frozen=True, kw_only=True):
    """Look at *job* of *queue*."""

    job: int | str


class ListLetters(Options, frozen=True, kw_only=True):
    """List dead letters after the place *after*."""

    after: int = 0
    limit: int = 100


class ReadUsage(Options, frozen=True, kw_only=True):
    """Add up what model calls have used *since* so long ago, grouped *by* names with commas."""

    since: str = "24h"
    by: str = "tenant"


class ReadLog(Options, frozen=True, kw_only=True):
    """Read records of *topic* after an offset; without one, the newest."""

    topic: str
    after: int | None = None
    limit: int = 100
