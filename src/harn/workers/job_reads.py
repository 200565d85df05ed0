"""Reading the state of jobs; those that callers ask for at the same moment are read together."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from harn.errors import HarnError
from harn.storage import Store
from harn.storage.queue import QueueWork, stored_jobs, work_on
from harn.workers.job_state import JobState, job_state

if TYPE_CHECKING:
    from harn.runtime import Runtime

READ_AT_ONCE = 100
"""Jobs that are read together at most."""

Reads = dict[int, list[asyncio.Future[stored_jobs.StoredJob | None]]]


class JobReads:
    """The jobs that callers of one runtime read."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._reads: dict[str, Reads] = {}
        """The jobs to be read in the next turn of the loop, by queue."""

    async def id_of(self, queue: str, key: int | str) -> int | None:
        """Return the id of a job; None if *key* is a ticket that is not committed here.

        A job that waits in the outbox is moved into its queue. Cancelling may leave it there or in
        the queue.
        """
        if isinstance(key, int):
            return key
        while True:
            found = await self._store.run(partial(stored_jobs.find_ticket, queue, key), write=False)
            if found.job_id is not None or not found.is_waiting:
                return found.job_id
            work = QueueWork(dedupe_ms=self._runtime.settings.dedupe_window_ms)
            await self._store.run(partial(work_on, queue, work, self._runtime.ids.new))

    async def state(self, queue: str, key: int | str) -> JobState | None:
        """Return the state of a job, by its id or ticket, now; None if there is no such job.

        Cancelling leaves nothing behind.
        """
        id = key if isinstance(key, int) else await self.id_of(queue, key)
        if id is None:
            return None
        found = await self._store.submit(partial(stored_jobs.read_jobs, queue, (id,)), write=False)
        return job_state(queue, found[0]) if found else None

    async def state_together(self, queue: str, id: int) -> JobState | None:
        """Return the state of a job, read with those that other callers ask for at this moment.

        Cancelling leaves nothing behind; the others get their answers.
        """
        asked: asyncio.Future[stored_jobs.StoredJob | None] = self._runtime.loop.create_future()
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
                look = partial(stored_jobs.read_jobs, queue, [*some])
                read = self._store.submit(look, write=False)
            except HarnError as error:
                _tell(some, error)
            else:
                read.add_done_callback(partial(_answer, some))


def _answer(reads: Reads, read: asyncio.Future[list[stored_jobs.StoredJob]]) -> None:
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
