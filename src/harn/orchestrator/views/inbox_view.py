"""The triggers' inbox: events under way, waiting for a retry, or of a dead process."""

from __future__ import annotations

from typing import Any

from harn.clock import iso
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.triggers import Pending, inbox
from harn.triggers import Repetitions


async def inbox_view(runtime: Runtime) -> dict[str, Any]:
    """Return the state of the triggers' inbox in the store.

    Refused repetitions are not written to the store, so only those of this process are counted.
    """
    found = await runtime.service(Store).run(inbox, write=False)
    duplicates = runtime.service(Repetitions).refused
    states: dict[str, list[dict[str, Any]]] = {"in_flight": [], "retry": [], "stranded": []}
    for each, alive in found.oldest:
        state = "retry" if each.due_ms > found.now_ms else "in_flight" if alive else "stranded"
        states[state].append(event_under_way(each))
    in_flight = found.unsettled - found.waiting
    return {
        "dispatcher_in_flight": in_flight,
        "dispatcher_retry_queue_depth": found.waiting,
        "inferred_in_flight": in_flight,
        "inferred_pending_retries": found.waiting,
        "inbox_claims_written": found.claims,
        "inbox_envelopes_written": found.envelopes,
        "inbox_duplicates_rejected": duplicates,
        "inbox_fast_path_hits": 0,  # there is no cache: every repetition is found in the store
        "inbox_durable_hits": duplicates,
        "inbox_expired_entries": found.expired,
        "inbox_active_entries": found.held,
        "in_flight_dispatches": states["in_flight"],
        "pending_retries": states["retry"],
        "stranded_envelopes": states["stranded"],
    }


def event_under_way(event: Pending) -> dict[str, Any]:
    """Return an event of the inbox that is not settled, JSON-ready."""
    return {
        "envelope": event.envelope,
        "trigger_id": event.binding_id,
        "event_id": event.event_id,
        "attempt": event.attempt,
        "due_at": iso(event.due_ms) if event.due_ms else None,
    }
