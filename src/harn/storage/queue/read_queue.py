"""A queue's row, read by operations that do not change the queue: it is not locked."""

from __future__ import annotations

from typing import Any

import msgspec

from harn.storage.operations import Operation, ask, ask_together
from harn.storage.queue.outbox import outbox_waits
from harn.storage.queue.pauses import Pauses, read_pauses


class QueueRow(msgspec.Struct, frozen=True):
    """The columns of the statement `queue_row`, in their order."""

    queue_id: int
    now: int
    """The store's time."""
    dimension: str
    cap: int
    policy: str | None
    round: int
    last_key: str
    promoted: int
    alarm: int | None
    ages: str
    deferrals: int
    promotions: int
    paused: str | None
    handled: str
    trimmed: int
    acked: int
    purged: int
    dead: int
    responses: int
    other_policy: str | None
    policy_at: int
    dropped_selected: int
    dropped_deferred: int
    cancelled: int
    expired: int
    retried: int
    charge: str
    hierarchy: str

    @property
    def pauses(self) -> Pauses:
        """What of the queue is paused."""
        return read_pauses(self.paused)

    @property
    def is_due(self) -> bool:
        """Whether a claim may have expired or a job come due."""
        return self.alarm is not None and self.alarm <= self.now


def read_queue(queue: str) -> Operation[QueueRow | None]:
    """Read the row of *queue*; None if nothing has ever entered it."""
    rows = yield ask("queue_row", queue=queue)
    return QueueRow(*rows[0]) if rows else None


def read_with_outbox(queue: str) -> Operation[tuple[QueueRow | None, bool]]:
    """Read the row of *queue*, and whether jobs wait for it in the outbox."""
    found: Any = yield ask_together([ask("queue_row", queue=queue), outbox_waits(queue)])
    rows, waiting = found
    return QueueRow(*rows[0]) if rows else None, bool(waiting)
