"""The operations of one process on one shared pool: those that meet share a transaction.

Submits, ends and cancels that meet while an operation is under way share the next one, and each
operation also starts what can start. So a hundred ends and the start of the next hundred tasks
cost one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from harn.batcher import Answer, Batcher, Entry, Landing
from harn.pools.backpressure import (
    Admit,
    BackpressurePolicy,
    Evict,
    Park,
    Refuse,
    RejectNew,
    decide,
)
from harn.storage import Store
from harn.storage.queue import shared_pools

if TYPE_CHECKING:
    from harn.pools.task import PoolTask
    from harn.runtime import Runtime


class Submit:
    """A submit; *landed* is called with the verdicts before anything else sees the tasks.

    *make* makes its jobs when the operation begins: they name the lease that is held then.
    """

    __slots__ = ("has_begun", "is_given_up", "landed", "make", "tasks")

    def __init__(
        self,
        tasks: Sequence[PoolTask],
        make: Callable[[str], shared_pools.PoolSubmit],
        landed: Callable[[list[shared_pools.Submitted]], None],
    ) -> None:
        self.tasks: Sequence[PoolTask] = tasks
        self.make: Callable[[str], shared_pools.PoolSubmit] = make
        self.landed: Callable[[list[shared_pools.Submitted]], None] = landed
        self.has_begun: bool = False
        self.is_given_up: bool = False
        """Whether its caller was cancelled while the operation was under way: it is undone."""


class End:
    """The end of a task that ran here."""

    __slots__ = ("is_stopped", "settlement")

    def __init__(self, settlement: shared_pools.Settlement, is_stopped: bool) -> None:
        self.settlement: shared_pools.Settlement = settlement
        self.is_stopped: bool = is_stopped
        """Whether the task ended because it was cancelled."""


class Cancel(int):
    """A task to be cancelled, by its id in the store."""


class Withdraw(int):
    """A submit to be undone, by its task's id in the store."""


LOOK = None
"""Asks only to start what can start."""


class Holder(Protocol):
    """The part of a pool that one process has."""

    @property
    def lease(self) -> str:
        """The lease of the process."""

    @property
    def holds_lease(self) -> bool:
        """Whether it is held at this moment, by the process's own clock."""

    @property
    def left(self) -> Sequence[str]:
        """Leases that the process has lost and not yet cleared."""

    def claim(self) -> shared_pools.PoolClaim | None:
        """Return what the process can run; None if it starts nothing."""

    def took(self, done: shared_pools.PoolDone, left: Sequence[str]) -> None:
        """Take in what an operation has changed, which cleared the leases *left*."""

    def failed(self, items: list[Any], given_up: Sequence[Submit]) -> None:
        """Take in that an operation failed; *items* of it are not waited for by any caller.

        The callers of the submits *given_up* were cancelled: if they landed, they are undone.
        """


class SharedWork:
    """Carries out the operations of one pool for its *holder*."""

    def __init__(
        self,
        runtime: Runtime,
        queue: str,
        policy: BackpressurePolicy,
        keep_keys_ms: int,
        holder: Holder,
    ) -> None:
        self._runtime = runtime
        self._queue = queue
        self._judge = partial(judge, policy)
        self._keep_keys_ms = keep_keys_ms
        self._holder = holder
        self._store = runtime.service(Store)
        self._left: Sequence[str] = ()
        self._submits: Sequence[Submit] = ()
        """Those of the operation under way."""
        self._batcher: Batcher[Any] = Batcher(
            runtime.loop, self._start, self._read, failed=self._failed
        )

    def hold(self, is_held: bool) -> None:
        """Begin no operation while this process has no lease."""
        self._batcher.is_held = is_held
        if not is_held:
            self._batcher.wake()

    def ask(self, item: Submit | Cancel | Withdraw) -> asyncio.Future[Any]:
        """Ask for *item*; the future gets its result."""
        return self._batcher.ask(item)

    def tell(
        self, item: Submit | End | Cancel | Withdraw | None, answer: Answer | None = None
    ) -> None:
        """Ask for *item* without waiting; an end is sent again until the store has taken it."""
        self._batcher.add(item, answer)

    def _start(self, batch: list[Entry[Any]], landing: Landing) -> bool:
        items = [entry.item for entry in batch]
        submits = [item for item in items if isinstance(item, Submit)]
        for submit in submits:
            submit.has_begun = True
        self._submits = submits
        ends = [item for item in items if isinstance(item, End)]
        lease, self._left = self._holder.lease, tuple(self._holder.left)
        work = shared_pools.PoolWork(
            self._judge,
            lease,
            not self._holder.holds_lease,
            self._left,
            [each.settlement for each in ends if not each.is_stopped],
            [each.settlement for each in ends if each.is_stopped],
            [int(item) for item in items if isinstance(item, Cancel)],
            [int(item) for item in items if isinstance(item, Withdraw)],
            [each.make(lease) for each in submits],
            self._holder.claim(),
            self._keep_keys_ms,
            self._runtime.ambient.submitted_by,
        )
        recipe = partial(shared_pools.work_on_pool, self._queue, work, self._runtime.ids.new)
        self._store.submit(recipe, into=landing)
        return True

    def _read(self, batch: list[Entry[Any]], done: shared_pools.PoolDone | None) -> list[Any]:
        assert done is not None, "the pool was opened before"
        answers = _Answers(done)
        results: list[Any] = []
        for entry in batch:
            item = entry.item
            result = answers.next(item)
            if isinstance(item, Submit):
                item.landed(result)
            results.append(result)
        self._holder.took(done, self._left)
        return results

    def _failed(self, entries: list[Entry[Any]], error: BaseException) -> None:
        if not self._runtime.closing:
            given_up = [submit for submit in self._submits if submit.is_given_up]
            again = [entry.item for entry in entries if entry.item is not LOOK]
            self._holder.failed(again, given_up)


class _Answers:
    """Deals the results of an operation out to its requests, in their order."""

    def __init__(self, done: shared_pools.PoolDone) -> None:
        self._ended = iter(done.ended)
        self._stopped = iter(done.stopped)
        self._cancelled = iter(done.cancelled)
        self._withdrawn = iter(done.withdrawn)
        self._submitted = iter(done.submitted)

    def next(self, item: Any) -> Any:
        """Return the result of *item*."""
        if isinstance(item, End):
            return next(self._stopped if item.is_stopped else self._ended)
        if isinstance(item, Submit):
            return next(self._submitted)
        if isinstance(item, Cancel):
            return next(self._cancelled)
        return next(self._withdrawn) if isinstance(item, Withdraw) else None


def judge(
    policy: BackpressurePolicy, met: shared_pools.Totals, slots: int, count: int
) -> shared_pools.Verdict:
    """Decide on a submit of *count* tasks into a pool with *slots*, as the store asks it."""
    decision = decide(
        policy,
        queued=met.queued,
        running=met.running,
        slots=slots,
        ahead=met.blocked,
        count=count,
    )
    match decision:
        case Admit():
            return "admit"
        case Park():
            return "park"
        case RejectNew():
            return "reject"
        case Refuse():
            return "refuse"
        case Evict():
            return "evict_longest" if policy.evict == "longest" else "evict_oldest"
