"""The last instant of each schedule that fired or was given up."""

from __future__ import annotations

from harn import topics
from harn.storage.codec import draft
from harn.storage.contract import Draft
from harn.storage.operations import Operation, ask
from harn.storage.triggers.trigger_fold import write


def cron_last(trigger_id: str) -> Operation[int | None]:
    """Return the last instant of a schedule that fired or was given up, or None."""
    rows = yield ask("trigger_cron_last", trigger_id=trigger_id)
    return int(rows[0][0]) if rows else None


def give_up(trigger_id: str, instant: int) -> Operation[None]:
    """Note that the instants of a schedule up to *instant* are not worth firing any more."""
    last = yield from cron_last(trigger_id)
    if last is None or last < instant:
        yield from write([fired_draft(trigger_id, instant)])


def fired_draft(trigger_id: str, instant: int) -> Draft:
    """Make the record that *instant* is the last one of the schedule."""
    payload = {"trigger_id": trigger_id, "last_fired_at_ms": instant}
    return draft(topics.CRON_STATE, "cron_fired", payload)
