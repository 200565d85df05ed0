"""What makes an event a duplicate: the key that a delivery or an emit claims, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.errors import InvalidOption
from harn.ids import digest
from harn.naming import has_controls, joined
from harn.storage.triggers import DedupeClaim, Delivery
from harn.triggers.event import TriggerEvent, as_gate_key, find

if TYPE_CHECKING:
    from harn.triggers.binding import Binding

DAY_MS = 86_400_000
EMIT_KEEP_MS = 7 * DAY_MS
"""How long the id of an emit or of a delivery is remembered."""


def delivery_to(binding: Binding, event: TriggerEvent, replay_of: str | None) -> Delivery:
    """Return how *event* is stored for *binding*; a replay is never a duplicate."""
    claim = None
    if binding.dedupe_path is not None and replay_of is None:
        value = find(event, binding.dedupe_path)
        scope = f"{joined('binding', event.tenant_id or '')}:{binding.id}"
        keep_ms = binding.retry.retention_days * DAY_MS
        key = as_gate_key(value)
        if has_controls(key):
            raise InvalidOption("dedupe_key", key, "text without control characters")
        claim = DedupeClaim(scope, _at_most_500(key), "", keep_ms)
        if key == "null":
            claim = None  # the event has no such value, so it cannot be a duplicate
    return Delivery(binding.id, binding.version, claim)


def claim_of_emit(event: TriggerEvent, channel: str, id: str) -> DedupeClaim:
    """Return the claim of an emit with the caller's own *id*."""
    scope = f"{joined('channel', event.tenant_id or '')}:{channel}"
    return DedupeClaim(scope, id, "", EMIT_KEEP_MS)


def _at_most_500(key: str) -> str:
    # A long key is cut and ends in its digest. The result is longer than 500 characters, so it
    # never equals a key that was not cut.
    return key if len(key) <= 500 else f"{key[:480]}{digest(key)}"
