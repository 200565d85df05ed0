"""Looking for work without writing: in one queue for its consumer, or in many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harn.storage.operations import Operation, ask, ask_ahead, ask_together
from harn.storage.queue.outbox import outbox_waits
from harn.storage.queue.pauses import read_pauses
from harn.storage.queue.read_queue import read_with_outbox

_encode = msgspec.json.encode


class Look(msgspec.Struct, frozen=True):
    """What a look at some queues has found."""

    ready: frozenset[str]
    """The queues in which a claim may find a job."""
    due_in: float | None
    """Seconds until one of the others may have a job if nothing else happens; None for never."""


def look_at(queues: Sequence[str]) -> Operation[Look]:
    """Return, without writing, which of *queues* may have a job for a consumer of every job."""
    names = _encode(queues).decode()
    found: Any = yield ask_together(
        [ask("queues_in_sight", names=names), ask_ahead("queues_that_wait", names=names)]
    )
    rows, waiting = found
    ready = {name for (name,) in waiting or ()}
    due_in: float | None = None
    for name, alarm, paused, is_open, now in rows:
        if paused is not None and read_pauses(paused).queue is not None:
            ready.discard(name)
        elif is_open or alarm <= now:
            ready.add(name)
        else:
            left = (alarm - now) / 1000
            due_in = left if due_in is None else min(due_in, left)
    return Look(frozenset(ready), due_in)


def has_work(
    queue: str, triggers: frozenset[str] | None = None
) -> Operation[tuple[bool, int, int | None]]:
    """Return, without writing, whether a claim may find a job, the time, and the queue's alarm.

    With *triggers* only jobs of these trigger ids count.
    """
    row, is_waiting = yield from read_with_outbox(queue)
    if row is None:
        return is_waiting, 0, None
    if row.paused is not None and row.pauses.queue is not None:
        return False, row.now, None
    if is_waiting or row.is_due:
        return True, row.now, row.alarm
    in_tree = row.hierarchy != ""  # where a branch at its cap holds up leaves that are below theirs
    opened = ask("open_branches" if in_tree else "open_keys", queue_id=row.queue_id, limit=1)
    found = bool((yield opened))
    if found and (ours := (yield from needed_triggers(row.queue_id, triggers))) is not None:
        ready = "open_job_in_tree" if in_tree else "open_job_of"
        found = bool((yield ask(ready, queue_id=row.queue_id, triggers=ours)))
    return found, row.now, row.alarm


def needed_triggers(queue_id: int, triggers: frozenset[str] | None) -> Operation[str | None]:
    """Return a claimer's trigger ids as JSON if the queue has seen any other one."""
    if triggers is None:
        return None
    rows = yield ask("triggers_seen", queue_id=queue_id)
    if all(trigger in triggers for (trigger,) in rows):
        return None
    return _encode(sorted(triggers)).decode()


def outbox_span(queue: str) -> Operation[tuple[int, int] | None]:
    """Return the places of the first and the last commit of which jobs wait for *queue*."""
    span = ask_ahead("outbox_span", queue=queue)
    found: Any = yield ask_together([span, outbox_waits(queue)])
    rows, waiting = found
    return (rows[0][0], rows[0][1]) if waiting and rows[0][0] is not None else None
