"""Waiting for jobs to be settled, in this process or any other.

Callers that begin to wait at the same moment share one look at the store, and those whose jobs are
settled get their outcomes from it. The others are told by this process when it acks a job
(`QueueOperations.listener`), without a read. When the queue's claims grow by anything else, such as
the work of another process, all jobs that are waited for are looked at together. Each operation of
this process tells which offsets of the claims are its own, so a gap shows that there is more.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from harn.errors import HarnError
from harn.storage import Store, log
from harn.storage.queue import QueueDone, Settlement, stored_jobs
from harn.topics import queue_topics
from harn.workers.awaited_jobs import Awaited, Ended
from harn.workers.job_reads import JobReads
from harn.workers.job_state import JobState
from harn.workers.queue_operations import OperationsByQueue, QueueOperations

if TYPE_CHECKING:
    from harn.runtime import Runtime

AGAIN = 0.5
"""Seconds after which the store is read again, even without a notification."""


class _Response(msgspec.Struct):
    """The part of an acked job's response that its callers wait for."""

    outcome: msgspec.Raw = msgspec.Raw(b"null")


_read_response = msgspec.json.Decoder(_Response).decode


class JobResults:
    """The jobs that callers of one runtime wait for, by queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loop = runtime.loop
        self._store = runtime.service(Store)
        self._operations = runtime.service(OperationsByQueue)
        self._reads = runtime.service(JobReads)
        self._awaited: dict[str, Awaited] = {}

    def wait_for(self, queue: str, id: int) -> Ended:
        """Return a future of a job's end, whose place is taken before the first look."""
        woken: Ended = asyncio.Future(loop=self._loop)
        awaited = self._awaited.get(queue)
        if awaited is None:
            mark = self._store.growth(queue_topics(queue).claims)
            awaited = self._awaited[queue] = Awaited(queue, mark)
            self._operations.of(queue).listener = partial(self._hear, awaited)
        if not awaited.fresh:
            self._loop.call_soon(self._look_at_fresh, awaited)
        awaited.add(id, woken)
        return woken

    def give_up(self, queue: str, id: int, woken: Ended) -> None:
        """Forget a caller whose wait for a job has ended without its end."""
        awaited = self._awaited.get(queue)
        if awaited is not None:
            awaited.remove(id, woken)
            self._stop_watching_if_idle(awaited)

    async def read(self, queue: str, id: int) -> JobState | None:
        """Read a job whose outcome did not come with its end; callers that meet share a read.

        Cancelling leaves nothing behind.
        """
        return await self._reads.state_together(queue, id)

    async def committed(self, queue: str, ticket: str) -> int:
        """Wait for the commit of the transaction that enqueued a job; return the job's id.

        Cancelling leaves nothing behind.
        """
        topic = queue_topics(queue).jobs
        mark = self._store.growth(topic)
        while (id := await self._reads.id_of(queue, ticket)) is None:
            await self._store.grown(topic, mark, AGAIN)
            mark = self._store.growth(topic)
        return id

    async def aclose(self) -> None:
        """End the waits of callers that are no tasks of the runtime; its own are cancelled."""
        for queue, awaited in self._awaited.items():
            awaited.fail(partial(_closed, queue))

    # -- watching ----------------------------------------------------------------------------

    def _watch(self, awaited: Awaited) -> None:
        # In an empty context: a graceful stop of the first caller must not end the watcher.
        watcher = self._loop.create_task(self._follow(awaited), context=contextvars.Context())
        awaited.watcher = watcher
        self._runtime.own(watcher)
        watcher.add_done_callback(partial(self._watched, awaited))

    def _stop_watching_if_idle(self, awaited: Awaited) -> None:
        """Stop watching a queue when no caller waits for its jobs."""
        if awaited.waiters or self._awaited.get(awaited.queue) is not awaited:
            return
        del self._awaited[awaited.queue]
        self._operations.of(awaited.queue).listener = None
        if awaited.watcher is not None:
            awaited.watcher.cancel()

    def _watched(self, awaited: Awaited, watcher: asyncio.Task[None]) -> None:
        """Fail the waiters that are left when the watcher has ended."""
        if not watcher.cancelled():
            name = awaited.queue
            error = watcher.exception() or HarnError(f"queue {name!r} is watched no more")
            awaited.fail(lambda _: error)

    def _hear(self, awaited: Awaited, settled: Iterable[Settlement], done: QueueDone) -> None:
        """Wake the callers whose jobs an operation of this process has settled."""
        if done.is_untold:
            awaited.saw(awaited.known + 1, all_up_to_here=False)
        elif done.noted is not None:
            awaited.took_part(*done.noted)
        waiters = awaited.waiters
        for item, result in zip(settled, done.settled, strict=True):
            if item.job_id in waiters and result.settled == "done":
                if item.action == "ack":
                    awaited.wake(item.job_id, item.outcome)
                elif result.dead:
                    awaited.wake(item.job_id, None)
        self._stop_watching_if_idle(awaited)

    async def _follow(self, awaited: Awaited) -> None:
        """Look at all jobs whenever something may have happened to them that was not told."""
        queue, clock = awaited.queue, self._runtime.clock
        topic, operations = queue_topics(queue).claims, self._operations.of(queue)
        mark, looked_at = awaited.mark, clock.monotonic()
        within = 0.0  # at first: other processes are watched from here on, not from the first look
        while True:
            await self._store.grown(topic, mark, within)
            within = AGAIN
            while awaited.knows_all and await _hears(awaited, operations):
                pass
            mark = self._store.growth(topic)
            try:
                is_late = clock.monotonic() - looked_at >= AGAIN
                if is_late or await self._has_news(awaited):
                    looked_at = clock.monotonic()
                    look = await self._store.run(_look(queue, awaited.waiters), write=False)
                    self._tell_ended(awaited, look, all_up_to_here=True)
            except HarnError:  # the store cannot be reached: try again
                continue

    async def _has_news(self, awaited: Awaited) -> bool:
        """Tell whether the claims hold more than was told."""
        if awaited.knows_all:
            topic = queue_topics(awaited.queue).claims
            head = await self._store.run(partial(log.head, topic), write=False)
            awaited.saw(head, all_up_to_here=False)
        return not awaited.knows_all

    def _look_at_fresh(self, awaited: Awaited) -> None:
        """Look at the jobs that callers have begun to wait for in this turn of the loop."""
        fresh, awaited.fresh = awaited.fresh, []
        try:
            look = self._store.submit(_look(awaited.queue, fresh), write=False)
        except HarnError:
            self._read_alone(awaited, fresh)
        else:
            are_all = awaited.waiters.keys() <= set(fresh)
            look.add_done_callback(partial(self._looked, awaited, fresh, are_all))

    def _looked(
        self,
        awaited: Awaited,
        ids: Sequence[int],
        are_all: bool,
        look: asyncio.Future[stored_jobs.SettledJobs],
    ) -> None:
        if look.cancelled() or look.exception() is not None:
            self._read_alone(awaited, ids)
            return
        self._tell_ended(awaited, look.result(), all_up_to_here=are_all)
        if awaited.watcher is None and awaited.waiters:
            self._watch(awaited)

    def _tell_ended(
        self, awaited: Awaited, look: stored_jobs.SettledJobs, *, all_up_to_here: bool
    ) -> None:
        awaited.saw(look.noted, all_up_to_here=all_up_to_here)
        for job in look.jobs:
            awaited.wake(job.id, None if job.response is None else _outcome_in(job.response))
        self._stop_watching_if_idle(awaited)

    def _read_alone(self, awaited: Awaited, ids: Sequence[int]) -> None:
        """Let each caller read its job: the look failed, which may be the fault of another job."""
        for id in ids:
            awaited.wake(id, None)
        self._stop_watching_if_idle(awaited)


def _closed(queue: str, id: int) -> HarnError:
    return HarnError(
        f"the runtime was closed before job {id} of queue {queue!r} was settled; open another one "
        "to await it"
    )


def _look(queue: str, ids: Iterable[int]) -> Any:
    """Return the recipe that looks which of the jobs *ids* are settled."""
    return partial(stored_jobs.settled_among, queue, sorted(set(ids)))


def _outcome_in(response: bytes) -> bytes | None:
    """Return the outcome in a response; None if it is damaged: its caller reads it, and sees it."""
    try:
        return bytes(_read_response(response).outcome)
    except ValueError:
        return None


async def _hears(awaited: Awaited, operations: QueueOperations) -> bool:
    """Tell whether an operation now ends that shows, without a read, what the claims hold."""
    told = awaited.told
    return await operations.goes_on() and awaited.told > told
