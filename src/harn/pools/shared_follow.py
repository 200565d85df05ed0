"""Following a shared pool: the mirror is kept up to date with what other processes do.

A process knows its own operations by their answers. Everything else is read from the pool's topics
when the store hints that another process has written, and once a second in any case. For a pool
without an unfinished task PostgreSQL's listener does that look (`tells_marks`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from harn.errors import HarnError
from harn.pools.shared_work import START_MORE
from harn.storage import Store
from harn.storage.queue import shared_pools
from harn.teardown import retrieve
from harn.topics import by_others, queue_topics

if TYPE_CHECKING:
    from harn.pools.shared_pool_slots import SharedPoolSlots

logger: logging.Logger = logging.getLogger("harn.pools")

READ_EVERY = 0.95
"""Seconds after which the store is read again, even without a hint."""
READ_EVERY_IDLE = 5.0
"""The same while the pool has no unfinished task and the store reports each change by itself."""
PAGE = 500
CLAIM_EVERY = 0.05
"""Seconds between two claims of a free slot before the read, if the last one found none."""
CLAIM_WITHIN = 0.02
"""Seconds that the read waits for such a claim, which may have to wait for a lock."""


class Follower:
    """Keeps the mirror of one pool up to date, from `begin` until `stop`."""

    def __init__(self, slots: SharedPoolSlots, opened: shared_pools.PoolOpened) -> None:
        self._slots = slots
        self._queue = slots.queue_name
        topics = queue_topics(self._queue)
        self._topics = (topics.jobs, topics.claims)
        self._others = by_others(topics.jobs)
        """Grows with hints of other processes only: what this one writes is known already."""
        self._runtime = slots.runtime
        self._store = slots.runtime.service(Store)
        self._jobs_read = opened.jobs_head
        self._claims_read = opened.claims_head
        self._task: asyncio.Task[None] | None = None
        self._every = slots.runtime.settings.lease_renew_ms / 1000
        self._functions_read_at = 0.0
        """When the functions of other processes were read."""
        self._rests = False
        """Whether the next read is far away, unless the store reports a change."""
        self._claims_from = 0.0
        """From when on a hint is followed by a claim of a free slot before the read."""

    async def load(self) -> None:
        """Read every task that the store keeps, and the counts. Cancelling leaves a part read."""
        after = 0
        while page := await self._store.run(
            partial(shared_pools.pool_tasks, self._queue, after, PAGE), write=False
        ):
            for job in page:
                self._slots.changes.apply(job)
            after = page[-1].id
        counts = await self._store.run(partial(shared_pools.count_pool, self._queue), write=False)
        known = self._slots.ended.counts
        known["completed"], known["failed"] = counts.completed, counts.failed
        known["rejected"], known["cancelled"] = counts.rejected, counts.cancelled
        await self._read_functions_elsewhere()

    def begin(self) -> None:
        """Follow from now on."""
        # In an empty context: a graceful stop of the opener must not end it.
        context = contextvars.Context()
        self._task = self._runtime.loop.create_task(self._follow(), context=context)
        self._runtime.own(self._task)

    async def stop(self) -> None:
        """Follow no more. Cancelling leaves the task that followed to end by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def wake(self) -> None:
        """Read what has changed, soon."""
        self._store.touch(self._others)

    def wrote(self, done: shared_pools.PoolDone) -> None:
        """Skip the records of an operation of this process, if no other wrote in between."""
        if self._rests:
            self._rests = False
            self.wake()
        jobs, claims = done.wrote
        if jobs and jobs.start == self._jobs_read + 1:
            self._jobs_read = jobs[-1]
        if claims and claims.start == self._claims_read + 1:
            self._claims_read = claims[-1]

    async def read(self, id: int) -> None:
        """Bring one task up to date. Cancelling leaves nothing behind."""
        await self._read_some([id])

    async def catch_up(self) -> None:
        """Bring every task that has not ended up to date, also one that was trimmed since.

        Cancelling leaves some of them as they were.
        """
        waiting = self._slots.mirror.waiting_ids()
        for start in range(0, len(waiting), PAGE):
            ids = waiting[start : start + PAGE]
            for id in set(ids) - await self._read_some(ids):
                self._slots.changes.vanished(id)

    async def _read_some(self, ids: list[int]) -> set[int]:
        """Bring tasks up to date; return those that the store has, or that are known better."""
        recipe = partial(shared_pools.read_jobs, self._queue, ids)
        with self._slots.mirror.watched() as changed:
            jobs = await self._store.run(recipe, write=False)
        await self._apply(jobs, changed)
        return {job.id for job in jobs} | changed

    async def _apply(self, jobs: Sequence[shared_pools.StoredJob], changed: set[int]) -> None:
        """Apply what was read. What was *changed* meanwhile is read again.

        An answer that came during the read may be of a later moment than the read, or of an earlier
        one.
        """
        for job in jobs:
            if job.id not in changed:
                self._slots.changes.apply(job)
        if again := [job.id for job in jobs if job.id in changed]:
            await self._read_some(again)

    def catch_up_soon(self) -> None:
        """Bring every task that has not ended up to date, without waiting for it."""
        self._runtime.own(self._runtime.loop.create_task(self._until_done(self.catch_up)))

    def read_soon(self, id: int) -> None:
        """Bring one task up to date, without waiting for it."""
        self._runtime.own(self._runtime.loop.create_task(self._until_done(partial(self.read, id))))

    async def read_until_done(self) -> None:
        """Read all that has changed, again until the store answers. Cancelling stops in between."""
        await self._until_done(self._read_all)

    async def _until_done(self, read: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await read()
            except HarnError as error:
                logger.info("pool %r cannot be read now: %s", self._slots.names.name, error)
                await self._store.grown(self._queue, self._store.growth(self._queue), READ_EVERY)

    async def _follow(self) -> None:
        read: object | None = None
        is_hinted = False
        while True:
            growth, mark = self._store.growth(self._others), self._store.mark(self._topics)
            # An idle pool costs a read of the store's mark; with tasks, time matters as well.
            if mark is None or mark != read or self._slots.mirror.states:
                try:
                    if is_hinted:
                        await self._claim_before_read()
                    await self.refresh()
                    read = mark
                except HarnError as error:
                    logger.info("pool %r cannot be read now: %s", self._slots.names.name, error)
                except Exception:  # a fault of ours; without this task the pool would stand still
                    logger.exception("pool %r could not be followed", self._slots.names.name)
            is_idle = mark is not None and mark == read and not self._slots.mirror.states
            self._rests = is_idle and self._store.tells_marks
            await self._store.grown(
                self._others, growth, READ_EVERY_IDLE if self._rests else READ_EVERY
            )
            is_hinted = self._store.growth(self._others) != growth

    async def _claim_before_read(self) -> None:
        """Claim a slot that has perhaps become free, where tasks here wait for nothing else.

        A read would show whether there is one, but takes as long again. A process that runs tasks
        of the pool claims anyway when they end.
        """
        slots, now = self._slots, self._runtime.clock.monotonic()
        if slots.here or not slots.is_claiming or not slots.process.is_alive:
            return
        if now < self._claims_from or not slots.has_runnable():
            return
        self._claims_from = now + CLAIM_EVERY
        asked = slots.work.ask(START_MORE)
        asked.add_done_callback(retrieve)
        await asyncio.wait((asked,), timeout=CLAIM_WITHIN)
        if slots.here:
            self._claims_from = now

    async def refresh(self) -> None:
        """Read what has changed; start what can start. Cancelling leaves a part read."""
        await self._read_all()
        now = self._runtime.clock.monotonic()
        is_due = now >= self._functions_read_at + self._every and self._slots.mirror.states
        if is_due or (now >= self._functions_read_at + READ_EVERY and self._slots.holds_unknown()):
            await self._read_functions_elsewhere()
        if self._slots.is_claiming and self._slots.may_start_more():
            self._slots.start_more()

    async def _read_all(self) -> None:
        while not await self._read_page():
            pass

    async def _read_page(self) -> bool:
        slots = self._slots
        look = partial(
            shared_pools.pool_changes,
            self._queue,
            self._jobs_read,
            self._claims_read,
            slots.process.lease,
        )
        with slots.mirror.watched() as changed:
            changes = await self._store.run(look, write=False)
        await self._apply(changes.touched, changed)
        self._jobs_read = max(self._jobs_read, changes.jobs_head)
        self._claims_read = max(self._claims_read, changes.claims_head)
        for id in changes.withdrawn:
            slots.changes.forget(id)
        for id in changes.cancels:
            slots.cancels.asked(id)
        if changes.settings is not None:
            slots.adopt_settings(changes.settings)
        slots.changed()
        return changes.is_all

    async def _read_functions_elsewhere(self) -> None:
        self._functions_read_at = self._runtime.clock.monotonic()
        self._slots.elsewhere = await self._slots.process.functions_elsewhere(self._queue)
