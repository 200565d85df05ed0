"""Waiting for jobs to be settled, in this process or any other.

Callers that wait for jobs of one queue share one look at the store: when the queue's records grow,
the jobs that are waited for are looked at together, and the callers of those that are settled wake.
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
from harn.storage.queue import job_control, job_states
from harn.topics import queue_topics
from harn.workers.claim_renewal import ClaimRenewal
from harn.workers.job_state import JobState, job_state

if TYPE_CHECKING:
    from harn.runtime import Runtime

AGAIN = 0.5
"""Seconds after which the store is looked at again, hint or no hint."""


class JobResults:
    """The jobs that callers of one runtime wait for, by queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._awaited: dict[str, dict[int, list[asyncio.Future[None]]]] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}

    async def settled(self, queue: str, id: int) -> JobState | None:
        """Wait until a job is settled and return its state; None if there is no such job.

        Cancelling and a graceful stop leave nothing behind.
        """
        while True:
            job = await self.state(queue, id)
            if job is None or job.is_settled:
                return job
            await self._wait(queue, id)

    async def state(self, queue: str, id: int) -> JobState | None:
        """Return the state of a job now; None if there is no such job."""
        found = await self._store.run(partial(job_states.read_jobs, queue, [id]), write=False)
        return job_state(queue, found[0]) if found else None

    async def _wait(self, queue: str, id: int) -> None:
        waiters = self._awaited.setdefault(queue, defaultdict(list))
        woken: asyncio.Future[None] = self._runtime.loop.create_future()
        waiters[id].append(woken)
        if queue not in self._watchers:
            self._watch(queue)
        try:
            with parked(woken):
                await woken
        finally:
            waiters[id].remove(woken)
            if not waiters[id]:
                del waiters[id]
            if not waiters and queue in self._watchers:
                self._watchers.pop(queue).cancel()

    def _watch(self, queue: str) -> None:
        # In no task's context: a graceful stop of the caller that comes first must not end it.
        watcher = self._runtime.loop.create_task(self._follow(queue), context=contextvars.Context())
        self._watchers[queue] = watcher
        self._runtime.own(watcher)
        watcher.add_done_callback(partial(self._watched, queue))

    def _watched(self, queue: str, watcher: asyncio.Task[None]) -> None:
        """Tell those who still wait that the watcher has ended."""
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
            except HarnError:  # out of reach: it may be back the next time
                ended = []
            for id in ended:
                for woken in waiters.get(id, ()):
                    resolve(woken)
            await self._store.grown(topic, mark, AGAIN)


async def cancel(runtime: Runtime, queue: str, id: int, reason: str | None) -> bool:
    """Settle a job as cancelled; False if there is none, or it is settled already."""
    if reason is not None and not isinstance(reason, str):
        raise InvalidOption("reason", reason, "text, or None")
    who = runtime.ambient.submitted_by
    runtime.check_here()
    is_cancelled = await runtime.service(Store).run(
        lambda: job_control.cancel_job(queue, id, who, reason, runtime.ids.new)
    )
    if is_cancelled:  # elsewhere a handler hears of it when its consumer renews its lease
        runtime.service(ClaimRenewal).lose_job(queue, id, "the job was cancelled")
    return is_cancelled
