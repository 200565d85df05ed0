"""Read the log of a queue into a history, without writing anything."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from harn.clock import iso
from harn.errors import HarnError
from harn.storage import Rows, Store
from harn.storage.log import list_topics, oldest_kept, records
from harn.topics import queue_topics
from harn.workers.whatif.history import QueueHistory
from harn.workers.whatif.history_builder import HistoryBuilder

PAGE = 5000


class _Topic:
    """The rest of a topic, up to the offset that was its newest one when we began."""

    def __init__(self, store: Store, name: str, head: int) -> None:
        self.page: Rows = []
        self._store = store
        self._name = name
        self._after = 0
        self._head = head

    async def fill(self) -> bool:
        """Read a page if there is none; tell whether there is one now."""
        if not self.page and self._after < self._head:
            recipe = partial(records, self._name, self._after, PAGE)
            rows = await self._store.run(recipe, write=False)
            self._after = rows[-1][1] if rows else self._head
            self.page = [row for row in rows if row[1] <= self._head]
        return bool(self.page)

    def take_before(self, order: int | None) -> Rows:
        """Take the records that come before a place in the order of all topics."""
        if order is None or self.page[-1][0] < order:
            taken, self.page = self.page, []
            return taken
        place = next(place for place, row in enumerate(self.page) if row[0] >= order)
        taken, self.page = self.page[:place], self.page[place:]
        return taken


async def read_history(
    store: Store, queue: str, since: int | None, progress: Callable[[int], None] | None = None
) -> QueueHistory:
    """Read the jobs and claims of *queue*; raise if they cannot tell of the time after *since*.

    The steps before *since* are read too: they lead to the state of the queue at that time.
    Cancelling leaves nothing behind.
    """
    names, builder, count = queue_topics(queue), HistoryBuilder(), 0
    heads = await store.run(list_topics, write=False)
    first = await store.run(partial(oldest_kept, names.jobs), write=False)
    jobs = _Topic(store, names.jobs, heads.get(names.jobs, 0))
    claims = _Topic(store, names.claims, heads.get(names.claims, 0))
    while True:
        more_jobs, more_claims = await jobs.fill(), await claims.fill()
        if not (more_jobs or more_claims):
            break
        begun = claims.page[0][0] if more_claims else None
        if not more_jobs or (begun is not None and begun < jobs.page[0][0]):
            rows = claims.take_before(jobs.page[0][0] if more_jobs else None)
            builder.add_claims(rows)
        else:
            rows = jobs.take_before(begun)
            builder.add_jobs(rows)
        count += len(rows)
        if progress is not None:
            progress(count)
    _check(queue, builder.history, first, since)
    return builder.history


def _check(queue: str, history: QueueHistory, first: int, since: int | None) -> None:
    """Raise unless the history has claims after *since*, and begins before it."""
    if not history.jobs:
        gone = "; its records were trimmed" if first > 1 else ""
        raise HarnError(f"the log of queue {queue!r} has no jobs{gone}: there is nothing to replay")
    if since is not None and first > 1 and history.step_at[0] > since:
        raise HarnError(
            f"the log of queue {queue!r} was trimmed: its oldest record is of "
            f"{iso(history.step_at[0])}; give a shorter --since, or none"
        )
    if not history.claim_round:
        raise HarnError(
            f"no job of queue {queue!r} was ever claimed: there are no durations to replay"
        )
    if since is not None and history.step_at[-1] < since:
        raise HarnError(
            f"the log of queue {queue!r} has no record after {iso(since)}: its newest one is of "
            f"{iso(history.step_at[-1])}; give a longer --since, or none"
        )
