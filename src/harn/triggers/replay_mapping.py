"""Whether a replay mapped its event to the same pool, key and priority as before.

A `SpawnToPool` names the pool, and reads key and priority from the event. A replay is another task
(`<trigger>:<event>#<number>`), so its id differs; pool, key and priority must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.triggers.dispatch_state import DispatchHandle

if TYPE_CHECKING:
    from harn.runtime import Runtime

LOOKED_BACK = 100_000
"""Outcomes searched, newest first, for the dispatch to compare with."""
PAGE = 500
COMPARED = ("pool", "key", "priority")


async def compare_mapping(runtime: Runtime, handle: DispatchHandle) -> dict[str, Any] | None:
    """Compare the pool task of a replay with the earlier one; None if the replay made no task.

    The earlier task is that of the event's own dispatch, or else of its newest other replay.
    `same` is None if there is no earlier task.
    """
    now = task_in(handle.result)
    if now is None:
        return None
    before = await _before(runtime, handle)
    return compared(before, now)


def compared(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return in which of pool, key and priority two tasks differ.

    >>> task = {"task": "t1", "pool": "p", "key": "a", "priority": 0}
    >>> compared(task, {**task, "task": "t2", "key": "b"})["differs"]
    ['key']
    """
    if before is None:
        return {"same": None, "differs": [], "before": None, "now": dict(now)}
    differs = [name for name in COMPARED if before[name] != now[name]]
    return {"same": not differs, "differs": differs, "before": dict(before), "now": dict(now)}


def task_in(result: Any) -> dict[str, Any] | None:
    """Return the pool task that a receipt names; None if it names none."""
    if not isinstance(result, Mapping) or result.get("_type") != "pool_task":
        return None
    place = {name: result.get(name) for name in COMPARED}
    return {"task": result.get("id"), **place, "priority": result.get("priority") or 0}


async def _before(runtime: Runtime, handle: DispatchHandle) -> dict[str, Any] | None:
    """Search the outbox backwards for the earlier task of the event."""
    log, original = runtime.event_log, handle.replay_of_event_id
    head = end = await log.head(topics.TRIGGER_OUTBOX)
    replayed: dict[str, Any] | None = None
    while end > 0 and end > head - LOOKED_BACK:
        start = max(0, end - PAGE)
        for record in reversed(await log.read(topics.TRIGGER_OUTBOX, start, end - start)):
            found = record.payload
            if found.get("trigger_id") != handle.binding_id:
                continue
            if found.get("event_id") == original:
                return task_in(found.get("result")) or replayed
            if found.get("replay_of_event_id") == original and found["event_id"] != handle.event_id:
                replayed = replayed or task_in(found.get("result"))
        end = start
    return replayed
