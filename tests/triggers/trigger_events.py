"""Events to try things on."""

from __future__ import annotations

from typing import Any

from harn.triggers.event import TriggerEvent


def an_event(**fields: Any) -> TriggerEvent:
    return TriggerEvent(
        **{
            "id": "e1",
            "provider": "channel",
            "kind": "channel.emit",
            "received_at": "2026-01-01T00:00:00Z",
            "occurred_at": "2026-01-01T00:00:00Z",
            **fields,
        }
    )
