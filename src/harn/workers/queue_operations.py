"""The operations of one process on one queue: those that meet share a transaction.

Enqueues, settlements and claims that meet while an operation is under way share the next one, in
that order and in one transaction. So a hundred acks and the claim of the next hundred jobs cost
one commit, on every engine, and nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.batcher import Answer, Batcher, Entry, Landing
from harn.storage import Store
from harn.storage.queue import (
    Claimed,
    Claiming,
    JobDraft,
    QueueDone,
    QueueWork,
    Settlement,
    SettlementResult,
    work_on,
)
from harn.teardown import retrieve

if TYPE_CHECKING:
    from harn.runtime import Runtime

MOST_BYTES = 32 * 1024 * 1024
TURNS = 5
"""Turns of the loop in which handlers of claimed jobs begin, end without a wait, and are acked."""

Listener = Callable[[Sequence[Settlement], QueueDone], None]
"""Receives the settlements of an operation, and what it has done."""
Wanted = Callable[[], Claiming | None]
"""Returns what to claim, when the operation begins; None if nothing is wanted any more."""


class QueueOperations:
    """One queue, as the tasks of one runtime use it."""

    def __init__(self, runtime: Runtime, queue: str) -> None:
        self.queue = queue
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._batcher: Batcher[Any] = Batcher(
            runtime.loop, self._start, self._read, most_bytes=MOST_BYTES, weigh=_weigh
        )
        # A memory store answers at once: callers would never let other tasks run.
        self._ask_now = self._batcher.ask if self._store.is_memory else self._batcher.ask_now
        self._dimension = "tenant"
        """What makes the queue's keys, as it was read last."""
        self._settlements: list[Settlement] = []
        """Those of the operation that is under way."""
        self.listener: Listener | None = None
        """Called after each operation, before its callers get their results."""

    async def goes_on(self) -> bool:
        """Wait until an operation succeeds or fails; False if none is under way or begins now.

        Cancelling leaves nothing behind.
        """
        for _ in range(TURNS):
            if not self._batcher.is_idle:
                await self._batcher.next_end()
                return True
            await asyncio.sleep(0)
        return False

    def enqueue(self, job: JobDraft) -> asyncio.Future[tuple[int, bool]]:
        """Ask for *job* to be entered: its id, and whether it was there before."""
        return self._ask_now(job)

    def enqueue_many(self, jobs: Sequence[JobDraft]) -> asyncio.Future[list[tuple[int, bool]]]:
        """Ask for *jobs* to be entered, all or none."""
        return self._ask_now(jobs)

    def settle(self, settlement: Settlement) -> asyncio.Future[SettlementResult]:
        """Ask for a claim to be acked, failed, released or renewed."""
        return self._ask_now(settlement)

    def settle_into(self, settlement: Settlement, answer: Answer) -> None:
        """Do the same without a future: *answer* receives the result."""
        self._batcher.add(settlement, answer)

    def claim(self, wanted: Wanted) -> asyncio.Future[Claimed]:
        """Ask for jobs, with what else is asked for in this turn of the loop.

        Cancelling the answer releases the jobs that were claimed for it.
        """
        return self._batcher.ask(wanted)

    def claim_now(self, claiming: Claiming) -> asyncio.Future[Claimed]:
        """Ask for jobs, for a caller that is likely to be alone."""
        return self._ask_now(claiming)

    def _start(self, batch: list[Entry[Any]], landing: Landing) -> bool:
        jobs: list[JobDraft] = []
        settlements: list[Settlement] = []
        claimings: list[Claiming] = []
        for entry in batch:
            item = entry.item
            kind = type(item)
            if kind is Settlement:
                settlements.append(item)
            elif kind is JobDraft:
                jobs.append(item)
            elif kind is Claiming:
                claimings.append(item)
            elif not callable(item):
                jobs.extend(item)
            else:
                entry.item = claiming = item()
                if claiming is not None:
                    claimings.append(claiming)
        if not (jobs or settlements or claimings):
            for entry in batch:
                _answer_nothing(entry)
            return False
        self._settlements = settlements
        dedupe_ms = self._runtime.settings.dedupe_window_ms
        work = QueueWork(jobs, settlements, claimings, dedupe_ms, self._dimension)
        recipe = partial(work_on, self.queue, work, self._runtime.ids.new)
        self._store.submit(recipe, into=landing)
        return True

    def _read(self, batch: list[Entry[Any]], done: QueueDone) -> list[Any]:
        entered, settled, claimed = iter(done.entered), iter(done.settled), iter(done.claimed)
        self._dimension = done.dimension or self._dimension
        if self.listener is not None:
            self.listener(self._settlements, done)
        results: list[Any] = []
        for entry in batch:
            item = entry.item
            kind = type(item)
            if kind is Settlement:
                results.append(next(settled))
            elif kind is JobDraft:
                results.append(next(entered))
            elif item is None:
                results.append(Claimed([]))
            elif kind is Claiming:
                jobs = next(claimed)
                if entry.is_given_up:
                    self.release(jobs)
                results.append(jobs)
            else:
                results.append([next(entered) for _ in item])
        return results

    def release(self, claimed: Claimed, reason: str = "the claimer was cancelled") -> None:
        """Release jobs that their claimer cannot take any more, without waiting for it."""
        for job in claimed.jobs:
            release = Settlement("release", job.id, job.claim_id, "", reason=reason)
            self.settle(release).add_done_callback(retrieve)


class OperationsByQueue:
    """The operations of a runtime, by queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_queue: dict[str, QueueOperations] = {}

    def of(self, queue: str) -> QueueOperations:
        """Return the operations of *queue*, the same for every `WorkerQueue` of that name."""
        operations = self._by_queue.get(queue)
        if operations is None:
            operations = self._by_queue[queue] = QueueOperations(self._runtime, queue)
        return operations


def _weigh(item: Any) -> tuple[int, int]:
    kind = type(item)
    if kind is Settlement:
        return 1, 0 if item.step is None else len(item.step.result)
    if kind is JobDraft:
        return 1, len(item.payload)
    if kind is Claiming or callable(item):
        return 1, 0
    return len(item), sum([len(job.payload) for job in item])


def _answer_nothing(entry: Entry[Any]) -> None:
    """Answer a claim that turned out not to be wanted."""
    if entry.answer is not None and not entry.is_given_up:
        entry.answer.set_result(Claimed([]))
