"""The public verbs of the event log: they use the current runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harn.current import current_runtime
from harn.eventlog.subscription import Subscription
from harn.storage import Event


async def event_log_emit(
    topic: str, kind: str, payload: Any, headers: Mapping[str, Any] | None = None
) -> Event:
    """Append a record to *topic* of the current runtime's log; it is durable on return.

    Cancelling before its commit began means it was not written; afterwards it may be.

    >>> import harn
    >>> async def main() -> int:
    ...     event = await event_log_emit("news", "greeting", {"text": "hello"})
    ...     return event.id
    >>> harn.run(main)
    1
    """
    return await current_runtime().event_log.emit(topic, kind, payload, headers)


async def event_log_read(topic: str, after: int = 0, limit: int | None = None) -> list[Event]:
    """Return the records of *topic* after offset *after*, oldest first, at most *limit*.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     for n in range(3):
    ...         await event_log_emit("news", "count", n)
    ...     return [event.payload for event in await event_log_read("news", after=1)]
    >>> harn.run(main)
    [1, 2]
    """
    return await current_runtime().event_log.read(topic, after, limit)


def event_log_subscribe(topic: str, after: int | None = None) -> Subscription:
    """Follow *topic* after offset *after*; None means from now on.

    Cancelling a wait loses nothing: the next one continues where it was.

    >>> import harn
    >>> async def main() -> str:
    ...     news = event_log_subscribe("news")
    ...     await event_log_emit("news", "greeting", "hello")
    ...     async for event in news:
    ...         return event.payload
    >>> harn.run(main)
    'hello'
    """
    return current_runtime().event_log.subscribe(topic, after)
