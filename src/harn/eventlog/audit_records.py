"""What `EventLog.record` takes, and how it becomes a draft when it is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from harn.storage import Draft, draft

logger: logging.Logger = logging.getLogger("harn.eventlog")

Payload = Any | Callable[[], Any]
"""A payload, or a function that makes it later."""

AuditRecord = tuple[str, str, Payload, Mapping[str, Any] | bytes | None, int]
"""Topic, kind, payload, headers, and when it happened in wall milliseconds.

Headers that are bytes are encoded already."""


class Receipt(Protocol):
    """A record that makes its own payload when it is called; see `EventLog.recorder`.

    It is kept for long and called once: it must say the same whenever that is.
    """

    @property
    def kind(self) -> str:
        """The kind of the record."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Its headers, the same for all receipts of its kind."""

    @property
    def at(self) -> int:
        """When it happened, in wall milliseconds."""

    def __call__(self) -> Any:
        """Return the payload."""


def to_draft(record: AuditRecord) -> Draft | None:
    """Make a draft of *record*; None, with a line in the log, if its payload cannot be written."""
    topic, kind, payload, headers, at = record
    told = headers if isinstance(headers, bytes) else None
    try:
        made = payload() if callable(payload) else payload
        found = draft(topic, kind, made, None if isinstance(headers, bytes) else headers)
    except Exception as error:
        logger.warning("an audit record for %s was dropped: %s", topic, error)
        return None
    return Draft(found.topic, found.kind, found.payload, told or found.headers, at)
