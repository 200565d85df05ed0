"""Waiting for jobs to be settled, in this process or any other.

Callers that wait for jobs of one queue share one look at the store: when the queue's records grow,
the jobs that are waited for are looked at together, and the callers of those that are settled wake.
What callers then read at the same moment is read together, too.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from harn.clock import resolve
from harn.errors import HarnError, InvalidOption
from harn.graceful import parked
from harn.storage import Store
from harn.storage.queue import Work, job_control, job_states, work_on
from harn.topics import queue_topics
from harn.workers.claim_renewal import ClaimRenewal
from harn.workers.job_state import JobState, job_state

if TYPE_CHECKING:
    from harn.runtime import Runtime

AGAIN = 0.5
"""Seconds after which the store is read again, even without a notification."""
READ_AT_ONCE = 100
"""Jobs that are read together at most."""

Reads = dict[int, list[asyncio.Future[job_states.StoredJob | None]]]


class JobResults:
    """The jobs that callers of one runtime wait for, by queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._awaited: dict[str, dict[int, list[asyncio.Future[None]]]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._reads: dict[str, Reads] = {}
        """The jobs to be read in the next turn of the loop, by queue."""

    async def settled(self, queue: str, key: int | str) -> JobState | None:
        """Wait until a job is settled and return its state; None if there is no such job.

        *key* is its id, or a ticket, whose commit is waited for. Cancelling and a graceful stop
        leave nothing behind.
        """
        topic = queue_topics(queue).jobs
        mark = self._store.growth(topic)
        while (id := await self.id_of(queue, key)) is None:
            await self._store.grown(topic, mark, AGAIN)
            mark = self._store.growth(topic)
        while True:
            mark = self._store.growth(queue_topics(queue).claims)
            job = await self._state_together(queue, id)
            if job is None or job.is_settled:
                return job
            job = await self._wait(queue, id, mark)
            if job is not None:
                return job

    async def id_of(self, queue: str, key: int | str) -> int | None:
        """Return the id of a job; None if *key* is a ticket that is not committed here.

        A job that waits in the outbox is moved into its queue.
        """
        if isinstance(key, int):
            return key
        while True:
            found = await self._store.run(partial(job_states.find_ticket, queue, key), write=False)
            if found.job_id is not None or not found.is_waiting:
                return found.job_id
            work = Work(dedupe_ms=self._runtime.settings.dedupe_window_ms)
            await self._store.run(partial(work_on, queue, work, self._runtime.ids.new))

    async def state(self, queue: str, key: int | str) -> JobState | None:
        """Return the state of a job, by its id or ticket, now; None if there is no such job."""
        id = await self.id_of(queue, key)
        if id is None:
            return None
        found = await self._store.run(partial(job_states.read_jobs, queue, [id]), write=False)
        return job_state(queue, found[0]) if found else None

    async def _state_together(self, queue: str, id: int) -> JobState | None:
        """Return the state of a job, read with those that other callers ask for at this moment."""
        asked: asyncio.Future[job_states.StoredJob | None] = self._runtime.loop.create_future()
        if queue not in self._reads:
            self._reads[queue] = {}
            self._runtime.loop.call_soon(self._read_together, queue)
        self._reads[queue].setdefault(id, []).append(asked)
        try:
            found = await asked
        except HarnError:  # the trouble may be that of a job that was read with it
            return await self.state(queue, id)
        return job_state(queue, found) if found else None

    def _read_together(self, queue: str) -> None:
        reads = self._reads.pop(queue)
        ids = sorted(reads)
        for start in range(0, len(ids), READ_AT_ONCE):
            some = {id: reads[id] for id in ids[start : start + READ_AT_ONCE]}
            try:
                look = partial(job_states.read_jobs, queue, [*some])
                read = self._store.submit(look, write=False)
            except HarnError as error:
                _tell(some, error)
            else:
                read.add_done_callback(partial(_answer, some))

    async def _wait(self, queue: str, id: int, mark: tuple[int, int]) -> JobState | None:
        """Wait until the watcher finds the job settled; its state, if it was settled before that.

        *mark* is the growth of the claims before the job was read. If they have grown since, the
        watcher may have looked already, without this job: it is read once more.
        """
        waiters = self._awaited.setdefault(queue, defaultdict(list))
        woken: asyncio.Future[None] = self._runtime.loop.create_future()
        waiters[id].append(woken)
        if queue not in self._watchers:
            self._watch(queue)
        try:
            if self._store.growth(queue_topics(queue).claims) != mark:
                job = await self._state_together(queue, id)
                if job is None or job.is_settled:
                    return job
            with parked(woken):
                await woken
            return None
        finally:
            waiters[id].remove(woken)
            if not waiters[id]:
                del waiters[id]
            if not waiters and queue in self._watchers:
                self._watchers.pop(queue).cancel()

    def _watch(self, queue: str) -> None:
        # In an empty context: a graceful stop of the first caller must not end the watcher.
        watcher = self._runtime.loop.create_task(self._follow(queue), context=contextvars.Context())
        self._watchers[queue] = watcher
        self._runtime.own(watcher)
        watcher.add_done_callback(partial(self._watched, queue))

    def _watched(self, queue: str, watcher: asyncio.Task[None]) -> None:
        """Fail the waiters that are left when the watcher has ended."""
        if self._watchers.get(queue) is watcher:
            del self._watchers[queue]
        if watcher.cancelled():
            return
        error = watcher.exception() or HarnError(f"queue {queue!r} is watched no more")
        for waiting in self._awaited[queue].values():
            for woken in waiting:
                if not woken.done():
                    woken.set_exception(error)

    async def _follow(self, queue: str) -> None:
        topic = queue_topics(queue).claims
        waiters = self._awaited[queue]
        while True:
            mark = self._store.growth(topic)
            look = partial(job_states.settled_among, queue, [*waiters])
            try:
                ended = (await self._store.run(look, write=False)).ids
            except HarnError:  # the store cannot be reached: try again
                ended = []
            for id in ended:
                for woken in waiters.get(id, ()):
                    resolve(woken)
            await self._store.grown(topic, mark, AGAIN)


def _answer(reads: Reads, read: asyncio.Future[list[job_states.StoredJob]]) -> None:
    """Give each caller the job that it asked for, None if there is none."""
    error = HarnError("the read was given up") if read.cancelled() else read.exception()
    if error is not None:
        _tell(reads, error)
        return
    found = {job.id: job for job in read.result()}
    for id, asked in reads.items():
        for each in asked:
            if not each.done():
                each.set_result(found.get(id))


def _tell(reads: Reads, error: BaseException) -> None:
    for asked in reads.values():
        for each in asked:
            if not each.done():
                each.set_exception(error)


async def cancel(runtime: Runtime, queue: str, key: int | str, reason: str | None) -> bool:
    """Settle a job as cancelled; False if there is none, or it is settled already."""
    if reason is not None and not isinstance(reason, str):
        raise InvalidOption("reason", reason, "text, or None")
    who = runtime.ambient.submitted_by
    runtime.check_here()
    id = await runtime.service(JobResults).id_of(queue, key)
    if id is None:
        return False
    is_cancelled = await runtime.service(Store).run(
        lambda: job_control.cancel_job(queue, id, who, reason, runtime.ids.new)
    )
    if is_cancelled:  # another process cancels its handler when it renews its lease
        runtime.service(ClaimRenewal).lose_job(queue, id, "the job was cancelled")
    return is_cancelled
