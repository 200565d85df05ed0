"""The records that a dispatch ends with: the outbox record, the receipt, the dead letter."""

from __future__ import annotations

from typing import Any

from harn import topics
from harn.errors import HarnError
from harn.ids import digest
from harn.storage import Draft, draft
from harn.triggers.dispatch_state import Dispatch, Outcome, shown_result
from harn.triggers.event import event_at
from harn.triggers.retry import error_class

MOST_RESULT = 256 * 1024


def outcome_records(dispatch: Dispatch, outcome: Outcome, now_ms: int) -> list[Draft]:
    """Return every record of an outcome; they are written in one transaction."""
    is_well = outcome.status in ("succeeded", "skipped")
    kind = f"dispatch_{outcome.status if is_well else 'failed'}"
    payload = _outcome_payload(dispatch, outcome)
    records = [draft(topics.TRIGGER_OUTBOX, kind, payload, headers_of(dispatch))]
    if dispatch.event.kind == "channel.emit":
        records.append(_receipt(dispatch, outcome, event_at(now_ms)))
    if outcome.dlq_entry_id is not None:
        records += _dead_letter(dispatch, outcome)
    return records


def _outcome_payload(dispatch: Dispatch, outcome: Outcome) -> dict[str, Any]:
    binding = dispatch.binding
    return {
        "envelope": dispatch.envelope,
        "trigger_id": binding.id,
        "binding_key": binding.key,
        "event_id": dispatch.event.id,
        "attempt_count": outcome.attempt_count,
        "status": outcome.status,
        "handler_kind": binding.target.kind,
        "target_uri": binding.target.uri,
        "replay_of_event_id": dispatch.replay_of,
        "result": shown_result(outcome),
        "error": outcome.error,
        **({"skip_stage": "flow_control"} if outcome.skip else {}),
    }


def _receipt(dispatch: Dispatch, outcome: Outcome, at: str) -> Draft:
    """Return the match receipt of a channel event, with which a replay can be compared."""
    result = outcome.result if isinstance(outcome.result, dict) else {}
    shown = {name: result[name] for name in ("id", "job_id", "status", "queue") if name in result}
    payload = {
        "receipt_id": digest("receipt", dispatch.delivery),
        "event_id": dispatch.event.id,
        "name_resolved": dispatch.event.provider_payload.get("name"),
        "trigger_id": dispatch.binding.id,
        "binding_key": dispatch.binding.key,
        "handler_kind": dispatch.binding.target.kind,
        "target_uri": dispatch.binding.target.uri,
        "handler_result": {"status": outcome.status, **shown},
        "matched_at": at,
    }
    return draft(topics.CHANNEL_AUDIT, "channel_match_receipt", payload)


def _dead_letter(dispatch: Dispatch, outcome: Outcome) -> list[Draft]:
    """Return the two records of a dead letter: the move, and the entry that holds its state."""
    event, binding = dispatch.event, dispatch.binding
    same = {
        "error_class": error_class(outcome.error or ""),
        "attempt_count": outcome.attempt_count,
        "event": event.as_dict(),
    }
    moved = {
        "trigger_id": binding.id,
        "binding_key": binding.key,
        "final_error": outcome.error,
        "attempts": list(outcome.history),
        **same,
    }
    entry = {
        "id": outcome.dlq_entry_id,
        "event_id": event.id,
        "binding_id": binding.id,
        "binding_version": binding.version,
        "provider": event.provider,
        "kind": event.kind,
        "state": "pending",
        "error": outcome.error,
        **({} if outcome.failure is None else outcome.failure.as_dict()),
        "retry_history": list(outcome.history),
        "replay_of_event_id": dispatch.replay_of,
        **same,
    }
    headers = headers_of(dispatch)
    return [
        draft(topics.TRIGGER_DLQ, "dlq_moved", moved, headers),
        draft(topics.TRIGGER_DLQ, "dlq_entry", entry, headers),
    ]


def headers_of(dispatch: Dispatch) -> dict[str, str]:
    """Return the headers of every record about a dispatch."""
    event, binding = dispatch.event, dispatch.binding
    found = {
        "event_id": event.id,
        "provider": event.provider,
        "kind": event.kind,
        "trigger_id": binding.id,
        "binding_key": binding.key,
        "handler_kind": binding.target.kind,
        "trace_id": event.trace_id,
        "tenant_id": event.tenant_id,
        "replay_of_event_id": dispatch.replay_of,
    }
    return {name: value for name, value in found.items() if value is not None}


def plain(result: Any) -> Any:
    """Return *result* if it can be stored as JSON, or a note that it was left out."""
    try:
        item = draft("x", "x", result)
    except HarnError:
        return {"result_omitted": True, "text": repr(result)[:500]}
    if len(item.payload) > MOST_RESULT:
        return {"result_omitted": True, "text": f"{len(item.payload):,} bytes"}
    return result if not hasattr(result, "as_dict") else result.as_dict()
