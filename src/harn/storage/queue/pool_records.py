"""The records that a shared pool and its queue exchange.

A shared pool is a queue whose jobs are the pool's tasks. A queued task is a READY job, a running
one a CLAIMED job, a submit that waits for a place a PARKED job; completed, failed, rejected and
cancelled tasks are ACKED, DEAD, PURGED and CANCELLED jobs. A job's `trigger_id` is the lease of
the process that submitted it, its `binding_key` decides its share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from harn.storage.queue.job_records import ClaimedJob, JobDraft, Settlement, SettlementResult

ROTATION: Literal["rotation"] = "rotation"
Order = Literal["oldest", "newest", "by_key", "rotation"]
"""Which queued task is next: the oldest, the newest, the oldest of the first key, or the oldest
of the key whose turn it is."""

PRIORITY_WIDTH = 20
"""How many digits of a share's key are the priority of its tasks, where the order is by key."""

UNRUN = "never_started"
CUT_OFF = "interrupted"
"""Why a task is stale: its process died before or after it began."""


class PoolSettings(msgspec.Struct, frozen=True):
    """What all processes that open a pool must agree on, and its cap."""

    scope: str
    scope_id: str
    name: str
    order: Order
    max_concurrent: int
    queue: dict[str, Any]
    backpressure: dict[str, Any]
    retention: dict[str, Any]
    created_at_ms: int = 0

    @property
    def is_unbounded(self) -> bool:
        """Whether every submit is admitted."""
        return bool(self.backpressure.get("kind") == "unbounded")

    @property
    def max_depth(self) -> int | None:
        """How many tasks may be queued; None if there is no bound."""
        return self.backpressure.get("max_depth")


_decode = msgspec.json.Decoder(PoolSettings).decode


@functools.lru_cache(maxsize=256)
def read_pool(stored: str) -> PoolSettings:
    """Read the settings of a pool."""
    return _decode(stored)


def write_pool(settings: PoolSettings) -> str:
    """Write the settings of a pool."""
    return msgspec.json.encode(settings).decode()


class Totals(msgspec.Struct):
    """How many tasks of a pool are queued, running and blocked."""

    queued: int
    running: int
    blocked: int

    def after_starts(self, slots: int) -> Totals:
        """Return the totals once every free slot has a task, as far as tasks are queued."""
        starting = max(0, min(self.queued, slots - self.running))
        return Totals(self.queued - starting, self.running + starting, self.blocked)


Verdict = Literal["admit", "park", "evict_oldest", "evict_longest", "reject", "refuse"]
"""What happens to a submit: it is taken; it waits; another is evicted for it; it ends as rejected;
or no task is made."""
Judge = Callable[[Totals, int, int], Verdict]
"""Decides on a submit of so many tasks by the totals, as they are after starts, and the slots."""


class PoolSubmit(msgspec.Struct, frozen=True):
    """One submit: all tasks or none; with *at_once* it is rejected where it would be refused."""

    jobs: tuple[JobDraft, ...]
    at_once: bool = False


class PoolClaim(msgspec.Struct, frozen=True):
    """What a process can run: its closures, and calls of some functions."""

    consumer: str
    lease: str
    functions: frozenset[str]
    """The functions that this process runs; empty if it runs only its own closures."""
    elsewhere: frozenset[str]
    """The functions that other living processes run."""
    looked_at: int
    """When *elsewhere* was read; a newer call may be one that they can run."""
    new_claim_ids: Callable[[int], Sequence[str]]
    known: frozenset[str] | None = None
    """The claims that the process knows of, if it may hold others: the answer to an operation was
    lost. Those are returned as if they were claimed now."""
    order: Order = "oldest"
    """The pool's order, as the process knows it: what is read ahead depends on it."""


class PoolWork(msgspec.Struct, frozen=True):
    """The requests that one operation on a pool carries out."""

    judge: Judge
    lease: str = ""
    """The lease of the process. Once it has ended, the operation enters and claims nothing."""
    is_overdue: bool = False
    """Whether the process itself finds that it has not renewed its lease in time."""
    left: Sequence[str] = ()
    """Leases that the process has lost: claims and submits under them are ended."""
    ends: Sequence[Settlement] = ()
    """Tasks that completed (`ack`), failed (`fail`) or are queued again (`release`)."""
    stopped: Sequence[Settlement] = ()
    """Running tasks that ended because they were cancelled."""
    cancels: Sequence[int] = ()
    """Tasks to be cancelled, wherever they are."""
    withdrawals: Sequence[int] = ()
    """Submits to be undone."""
    submits: Sequence[PoolSubmit] = ()
    claim: PoolClaim | None = None
    keep_keys_ms: int = 0
    """How long the idempotency key of an ended task counts."""
    by: str = "user"


class SubmitResult(msgspec.Struct, frozen=True):
    """The verdict on a submitted task: its id, or the reason why there is none.

    A *fenced* one was not entered, because its process had lost its lease.
    """

    verdict: Verdict | Literal["known", "fenced"]
    id: int = 0
    at: int = 0
    totals: Totals | None = None
    """Of a submit that was not admitted: the totals that it met."""
    same_as: list[SubmitResult] = []
    """Of a known task that the same operation enters: the verdict that has its id."""

    @property
    def task(self) -> int:
        """The id of the task."""
        return self.same_as[0].id if self.same_as else self.id


class Evicted(msgspec.Struct, frozen=True):
    """A queued task that was rejected for another submit, the newest of which is *by*."""

    id: int
    by: int
    depth: int


class PoolDone(msgspec.Struct):
    """The results of a `PoolWork`; lists are in the order of their requests."""

    now: int
    settings: PoolSettings
    totals: Totals
    lease: str = ""
    is_fenced: bool = False
    """Whether the lease had ended, so that nothing was entered or claimed."""
    ended: list[SettlementResult] = []
    stopped: list[SettlementResult] = []
    cancelled: list[str] = []
    """For each cancel: `cancelled`, `asked` (it runs), or `ended` (too late)."""
    withdrawn: list[bool] = []
    submitted: list[list[SubmitResult]] = []
    evicted: list[Evicted] = []
    admitted: list[int] = []
    """Tasks whose submitters waited for a place and have it now."""
    claimed: list[ClaimedJob] = []
    wrote: tuple[range, range] = (range(0), range(0))
    """The offsets that this operation wrote to the topics of jobs and of claims."""
    changed_nothing: bool = False
