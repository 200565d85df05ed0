"""How a process opens a shared pool: it is made, or its settings are compared and its cap set."""

from __future__ import annotations

import msgspec

from harn.storage.log import append, head
from harn.storage.operations import Operation
from harn.storage.queue.gathered_records import note
from harn.storage.queue.pool_index import adopt_settings
from harn.storage.queue.pool_records import PoolSettings, read_pool, write_pool
from harn.storage.queue.queue_row import open_queue, save_queue
from harn.topics import queue_topics


class PoolOpened(msgspec.Struct, frozen=True):
    """The settings of a pool, or those that differ from what its opener wants."""

    settings: PoolSettings
    jobs_head: int
    claims_head: int
    changed_nothing: bool = False


def open_pool(queue: str, wanted: PoolSettings) -> Operation[PoolOpened]:
    """Open the pool *queue*, made with these settings if it is new; its cap becomes the wanted one.

    Settings that differ are returned as they are stored; then nothing has changed.
    """
    state = yield from open_queue(queue, create=True)
    assert state is not None
    known = None if state.pool is None else read_pool(state.pool)
    kept = wanted if known is None else known
    created = state.now if known is None else known.created_at_ms
    settings = msgspec.structs.replace(wanted, created_at_ms=created)
    agreed = msgspec.structs.replace(kept, max_concurrent=0, created_at_ms=0)
    is_same = agreed == msgspec.structs.replace(wanted, max_concurrent=0, created_at_ms=0)
    if is_same and settings != known:
        yield from adopt_settings(state, write_pool(settings))
        note(state, "pool_opened", {"settings": state.pool, "opened_at_ms": state.now})
    yield from save_queue(state)
    if state.drafts:
        yield from append(state.drafts, places=False)
    topics = queue_topics(queue)
    return PoolOpened(
        settings if is_same else kept,
        (yield from head(topics.jobs)),
        (yield from head(topics.claims)),
        changed_nothing=not state.drafts,
    )
