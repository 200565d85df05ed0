"""The event that a handler gets, and dotted paths into it.

A path is keys and list positions joined by dots: `provider_payload.payload.items.0.name`. There
are no brackets; an empty path or segment finds nothing. A found value may be used as a priority or
a key. The functions that convert it are here too, because the sender chooses the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from harn.clock import from_iso, iso
from harn.errors import InvalidOption, did_you_mean
from harn.naming import check_data
from harn.records import SparseRecord

MISSING: Final = object()
"""The result of a path that finds nothing."""

MOST_PRIORITY = 1_000_000
"""A priority read from an event is at most this, and at least minus this."""

MOST_KEY = 500
"""The most characters of an event's id, dedupe key or trace id."""

SignatureState = Literal["verified", "unsigned"]

_INDEX = re.compile(r"\d{1,9}", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?", re.ASCII)


class TriggerEvent(SparseRecord, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One thing that happened, as handlers see it.

    A payload given to `channel_emit`, `trigger_fire` or `fire --payload`, and a webhook's parsed
    body, are at `provider_payload["payload"]`. Times are ISO-8601; *occurred_at_date* is the
    day of *occurred_at*, for a cron event in the schedule's zone. *dedupe_key* is the caller's id
    of an emit, or the name of a webhook's delivery. *headers* are the sender's claims and prove
    nothing. *batch* holds every member of a batch, including this event. *signature* says whether
    the sender has proven itself.

    >>> event = TriggerEvent(
    ...     id="e1", provider="channel", kind="channel.emit", received_at="2026-01-01T00:00:00Z",
    ...     occurred_at="2026-01-01T00:00:00Z", provider_payload={"payload": {"tags": ["a", "b"]}})
    >>> event.get("provider_payload.payload.tags.1"), event.get("no.such", "-")
    ('b', '-')
    """

    id: str
    provider: str
    kind: str
    received_at: str
    occurred_at: str
    occurred_at_date: str = ""
    dedupe_key: str | None = None
    trace_id: str | None = None
    tenant_id: str | None = None
    headers: dict[str, str] = {}
    provider_payload: dict[str, Any] = {}
    batch: tuple[TriggerEvent, ...] | None = None
    signature: SignatureState = "unsigned"

    def __post_init__(self) -> None:
        if not self.occurred_at_date:
            if not isinstance(self.occurred_at, str):
                raise InvalidOption("occurred_at", self.occurred_at, "a time in ISO-8601, as text")
            msgspec.structs.force_setattr(self, "occurred_at_date", self.occurred_at[:10])

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at *path*, or *default* if there is none."""
        found = find(self, path)
        return default if found is MISSING else found

    def as_dict(self) -> dict[str, Any]:
        """Return every field that is set, JSON-ready."""
        shown = SparseRecord.as_dict(self)
        if self.batch is not None:
            shown["batch"] = [member.as_dict() for member in self.batch]
        return shown


_FIELDS = frozenset(TriggerEvent.__struct_fields__)


def event_from(record: Mapping[str, Any]) -> TriggerEvent:
    """Read an event that `as_dict` wrote; raise `ValueError` if *record* is not one."""
    try:
        return msgspec.convert(record, TriggerEvent)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a trigger event: {error}") from None


def find(value: Any, path: str) -> Any:
    """Return the value at *path* in *value*, or `MISSING` if there is none.

    >>> find({"a": [{"b": 7}]}, "a.0.b"), find({"a": 1}, "a..b") is MISSING
    (7, True)
    """
    if not path:
        return MISSING
    for segment in path.split("."):
        value = _step(value, segment)
        if value is MISSING:
            return MISSING
    return value


def _step(value: Any, segment: str) -> Any:
    if not segment:
        return MISSING
    if isinstance(value, Mapping):
        return value.get(segment, MISSING)
    if isinstance(value, list | tuple):
        if _INDEX.fullmatch(segment) and int(segment) < len(value):
            return value[int(segment)]
        return MISSING
    if isinstance(value, TriggerEvent) and segment in _FIELDS:
        return getattr(value, segment)
    return MISSING


def as_priority(value: Any) -> int | None:
    """Read *value* as a priority, or None if it is not a number (the caller warns and uses 0).

    >>> as_priority(7.9), as_priority("7"), as_priority(True), as_priority("high")
    (7, 7, 1, None)
    """
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value.strip()):
            return None
        value = float(value) if "." in value else int(value)
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, int | float):
        return int(max(-MOST_PRIORITY, min(MOST_PRIORITY, value)))
    return None


def as_key(value: Any) -> str | None:
    """Return *value* as a key: a scalar becomes text, anything else None.

    >>> as_key("acme"), as_key(7), as_key(True), as_key(None), as_key([1])
    ('acme', '7', 'true', None, None)
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return msgspec.json.encode(value).decode()
    return None


def as_gate_key(value: Any) -> str:
    """Return *value* as the key of a gate: every value becomes text, a missing one `null`.

    >>> as_gate_key(MISSING), as_gate_key({"b": 1, "a": 2})
    ('null', '{"a":2,"b":1}')
    """
    if value is MISSING or value is None:
        return "null"
    return as_key(value) or msgspec.json.encode(value, order="sorted").decode()


def check_path(option: str, path: str | None) -> str | None:
    """Return *path* if it may be a dotted path, or None."""
    if path is None:
        return None
    if not isinstance(path, str) or not path or len(path) > 500 or not all(path.split(".")):
        raise InvalidOption(option, path, 'a dotted path such as "provider_payload.payload.source"')
    return path


_TYPES = {field.name: field.type for field in msgspec.structs.fields(TriggerEvent)}
_KEYS = frozenset(("id", "dedupe_key", "trace_id"))
"""Fields that identify something: every store must be able to keep them unchanged."""
SETTABLE = _FIELDS - {"provider_payload", "received_at", "provider"}


def check_field(name: str, value: Any) -> None:
    """Raise `InvalidOption` if *value* cannot be the field *name* of an event.

    >>> check_field("tenant_id", "acme")
    """
    if name not in SETTABLE:
        raise InvalidOption(name, value, f"a field{did_you_mean(name, SETTABLE)}")
    if name == "tenant_id" and value is not None:
        check_tenant(value)
    if name in _KEYS and value is not None:
        check_data(name, value, MOST_KEY)
    try:
        msgspec.convert(value, _TYPES[name])
        if name == "occurred_at":
            from_iso(value)
    except ValueError as error:  # msgspec's is one too
        raise InvalidOption(name, value, str(error).partition(" - at")[0]) from None


def check_tenant(value: Any) -> None:
    """Raise `InvalidOption` for a tenant's name that a worker queue would refuse."""
    if not (isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()):
        raise InvalidOption("tenant_id", value, "1 to 256 printable characters")


def event_at(ms: int) -> str:
    """Return the time of an event as text: ISO-8601 UTC, without milliseconds if they are zero.

    >>> event_at(1767225600000)
    '2026-01-01T00:00:00Z'
    """
    text = iso(ms)
    return text.removesuffix(".000Z") + "Z" if text.endswith(".000Z") else text
