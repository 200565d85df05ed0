"""The two records in `trigger.dlq` for a job that has no attempt left: a move, and a letter."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from harn.clock import iso
from harn.storage.contract import Draft
from harn.storage.queue.job_records import Settlement
from harn.topics import TRIGGER_DLQ

_CLASSES = (
    ("budget_exhausted", re.compile(r"budget.*(exhaust|exceed)")),
    ("handler_timeout", re.compile(r"timeout|timed out|deadline")),
    ("auth_failed", re.compile(r"\b40[13]\b|forbidden|unauthori[sz]ed")),
    ("provider_5xx", re.compile(r"provider.*\b5\d\d\b")),
    ("predicate_panic", re.compile(r"predicate.*(panic|thrown)")),
    ("handler_panic", re.compile(r"handler.*(panic|thrown)")),
)


def error_class(error: str) -> str:
    """Sort an error by the words in it.

    >>> error_class("TimeoutError: deadline passed"), error_class("boom")
    ('handler_timeout', 'unknown')
    """
    text = error.lower()
    return next((name for name, words in _CLASSES if words.search(text)), "unknown")


def failure_fields(told: Settlement) -> dict[str, Any]:
    """Return the fields of a record that describe a failed attempt, beside its `error`."""
    return {
        "error_type": told.error_type,
        "error_message": told.error_message,
        "traceback": told.traceback,
    }


def dead_letters(
    entry_id: str,
    queue: str,
    job_id: int,
    record: dict[str, Any],
    attempts: list[dict[str, Any]],
    error: str,
    told: Settlement | None = None,
) -> list[Draft]:
    """Make the two records for a job that died of *error* after *attempts*.

    *told* is the last attempt's failure, if the job did not die of a claim that expired.
    """
    event = record.get("event")
    known = event if isinstance(event, dict) else {}
    kind_of_error = error_class(error)
    moved = {
        "queue": queue,
        "job_event_id": job_id,
        "trigger_id": record.get("trigger_id"),
        "binding_key": record.get("binding_key"),
        "event": event,
        "attempt_count": len(attempts),
        "final_error": error,
        "error_class": kind_of_error,
        "attempts": attempts,
    }
    entry = {
        "id": entry_id,
        "queue": queue,
        "job_event_id": job_id,
        "event_id": known.get("id"),
        "binding_id": record.get("trigger_id"),
        "binding_version": record.get("binding_version"),
        "provider": known.get("provider"),
        "kind": known.get("kind"),
        "state": "pending",
        "error": error,
        "error_class": kind_of_error,
        "event": event,
        "retry_history": [
            {
                "attempt": each["attempt"],
                "at": iso(each["at_ms"]),
                "status": each["status"],
                "error": each["error"],
            }
            for each in attempts
        ],
        **({} if told is None else failure_fields(told)),
    }
    headers = {
        name: value
        for name, value in (
            ("queue", queue),
            ("trigger_id", record.get("trigger_id")),
            ("binding_key", record.get("binding_key")),
            ("event_id", known.get("id")),
            ("tenant_id", record.get("tenant_id")),
        )
        if value is not None
    }
    encoded = msgspec.json.encode(headers)
    return [
        Draft(TRIGGER_DLQ, "dlq_moved", msgspec.json.encode(moved), encoded),
        Draft(TRIGGER_DLQ, "dlq_entry", msgspec.json.encode(entry), encoded),
    ]
