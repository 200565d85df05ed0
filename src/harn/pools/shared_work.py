"""The operations of one process on one shared pool: those that meet share a transaction.

Submits, ends and cancels that meet while an operation is under way share the next one, and each
operation also starts what can start. So a hundred ends and the start of the next hundred tasks
cost one commit. After an answer to several submits the next operation waits for a few turns of the
loop: callers that submit in rounds share it with the ends of their last round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
    """A submit on its way to the store."""

    __slots__ = ("has_begun", "is_given_up", "tasks")

    def __init__(self, tasks: Sequence[PoolTask]) -> None:
        self.tasks: Sequence[PoolTask] = tasks
        self.has_begun: bool = False
        self.is_given_up: bool = False
        """Whether its caller was cancelled while the operation was under way: it is undone."""

    def make(self, lease: str) -> shared_pools.PoolSubmit:
        """Make its jobs, when the operation begins: they name the *lease* that is held then."""
        raise NotImplementedError

    def landed(self, verdicts: list[shared_pools.SubmitResult]) -> None:
        """Apply the verdicts, before other code sees the tasks."""
        raise NotImplementedError


class End:
    """The end of a task that ran here."""

    __slots__ = ("is_stopped", "settlement")

    def __init__(self, settlement: shared_pools.Settlement, is_stopped: bool) -> None:
        self.settlement: shared_pools.Settlement = settlement
        self.is_stopped: bool = is_stopped
        """Whether the task ended because it was cancelled."""

    def landed(self, result: shared_pools.SettlementResult) -> None:
        """Apply the answer, before tasks start in the slots that have become free."""
        raise NotImplementedError


class Cancel(int):
    """A task to be cancelled, by its id in the store."""


class Withdraw(int):
    """A submit to be undone, by its task's id in the store."""


TURNS = 5
"""Turns of the loop from an answer to the operation with the next submits of its callers.

One to return from `submit`, two for code that gathers the tasks, one for each of the next submits,
and the operation. A task that has started by then and never waits has ended.
"""
START_MORE = None
"""An item that asks for no change, only to start what can start."""


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

    def succeeded(self, done: shared_pools.PoolDone, left: Sequence[str]) -> None:
        """Apply what an operation has changed; it ended the claims under the leases *left*."""

    def failed(self, items: list[Any], given_up: Sequence[Submit]) -> None:
        """Recover from a failed operation; no caller waits for its *items*.

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
        self._log = runtime.event_log
        self._left: Sequence[str] = ()
        self._submits: list[Submit] = []
        """Those of the operation under way."""
        self._batcher: Batcher[Any] = Batcher(
            runtime.loop, self._start, self._read, failed=self._failed
        )

    def hold(self, is_held: bool) -> None:
        """Begin no operation while this process has no lease."""
        self._batcher.is_held = is_held
        if not is_held:
            self._batcher.wake()

    def ask(self, item: Submit | Cancel | Withdraw | None) -> asyncio.Future[Any]:
        """Ask for *item*; the future gets its result."""
        return self._batcher.ask(item)

    def add(
        self, item: Submit | End | Cancel | Withdraw | None, answer: Answer | None = None
    ) -> None:
        """Ask for *item* without waiting; an end is sent again until the store has taken it."""
        self._batcher.add(item, answer)

    def _start(self, batch: list[Entry[Any]], landing: Landing) -> bool:
        lease, self._left = self._holder.lease, tuple(self._holder.left)
        self._submits = submits = []
        ends: list[shared_pools.Settlement] = []
        stopped: list[shared_pools.Settlement] = []
        cancels: list[int] = []
        withdrawals: list[int] = []
        for entry in batch:
            item = entry.item
            if isinstance(item, Submit):
                item.has_begun = True
                submits.append(item)
            elif isinstance(item, End):
                (stopped if item.is_stopped else ends).append(item.settlement)
            elif isinstance(item, Cancel):
                cancels.append(int(item))
            elif isinstance(item, Withdraw):
                withdrawals.append(int(item))
        work = shared_pools.PoolWork(
            self._judge,
            lease,
            not self._holder.holds_lease,
            self._left,
            ends,
            stopped,
            cancels,
            withdrawals,
            [each.make(lease) for each in submits],
            self._holder.claim(),
            self._keep_keys_ms,
            self._runtime.ambient.submitted_by,
        )
        recipe = partial(shared_pools.work_on_pool, self._queue, work, self._runtime.ids.new)
        self._log.write_along()
        self._store.submit(recipe, into=landing)
        return True

    def _read(self, batch: list[Entry[Any]], done: shared_pools.PoolDone | None) -> list[Any]:
        assert done is not None, "the pool was opened before"
        ended, stopped, submitted = iter(done.ended), iter(done.stopped), iter(done.submitted)
        cancelled, withdrawn = iter(done.cancelled), iter(done.withdrawn)
        results: list[Any] = []
        for entry in batch:
            item = entry.item
            result: Any = None
            if isinstance(item, Submit):
                result = next(submitted)
                item.landed(result)
            elif isinstance(item, End):
                result = next(stopped if item.is_stopped else ended)
                item.landed(result)
            elif isinstance(item, Cancel):
                result = next(cancelled)
            elif isinstance(item, Withdraw):
                result = next(withdrawn)
            results.append(result)
        self._holder.succeeded(done, self._left)
        if len(self._submits) > 1:
            self._batcher.linger(TURNS)
        return results

    def _failed(self, entries: list[Entry[Any]], error: BaseException) -> None:
        if not self._runtime.closing:
            given_up = [submit for submit in self._submits if submit.is_given_up]
            again = [entry.item for entry in entries if entry.item is not START_MORE]
            self._holder.failed(again, given_up)


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
