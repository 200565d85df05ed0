"""What a job's row keeps of its attempts: the last twenty, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harn.storage.codec import decode

EXPIRED = "the claim expired: its consumer died or stopped renewing"


def add_history(history: str | None, attempt: int, at: int, status: str, error: str | None) -> str:
    """Add one attempt to a job's history, kept as JSON."""
    entries = decode(history.encode()) if history else []
    entries.append({"attempt": attempt, "at_ms": at, "status": status, "error": error})
    return msgspec.json.encode(entries[-20:]).decode()


def is_expiry(attempts: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the last of a dead job's *attempts* ended because its claim expired."""
    return bool(attempts) and attempts[-1].get("status") == "expired"


def without_expiry(history: str | None) -> str | None:
    """Remove the last entry if it says that a claim expired: the claim was renewed after all."""
    entries = decode(history.encode()) if history else []
    if entries and entries[-1]["status"] == "expired":
        entries.pop()
    return msgspec.json.encode(entries).decode() if entries else None
