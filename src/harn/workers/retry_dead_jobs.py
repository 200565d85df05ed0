"""Making a dead job ready again, and closing its dead letter with the same commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harn.clock import iso
from harn.storage import Operation, ask
from harn.storage.log import read
from harn.storage.queue import job_control
from harn.storage.triggers import change_letter, dead_letter, letter_draft
from harn.topics import TRIGGER_DLQ


def retry_and_close_letter(
    queue: str, id: int, by: str, new_id: Callable[[str], str]
) -> Operation[bool]:
    """Make a dead job of *queue* ready again; False if it is not dead."""
    changed, letter_id = yield from job_control.retry_job(queue, id, by, new_id)
    letter = None if letter_id is None else (yield from dead_letter(letter_id))
    if letter is not None and letter.state == "pending":
        events, _ = yield from read(TRIGGER_DLQ, letter.entry - 1, 1)
        [(now,)] = yield ask("now")
        for event in events:
            closed = _closed(event.payload, iso(now))
            yield from change_letter(letter.id, "pending", letter_draft(closed))
    return changed


def _closed(letter: dict[str, Any], at: str) -> dict[str, Any]:
    history = [*letter.get("retry_history", ()), {"at": at, "status": "retried"}]
    return {**letter, "state": "resolved", "retry_history": history}
