"""What `EventLog.record` takes, and how it becomes a draft when it is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from harn.storage import Draft, draft

logger: logging.Logger = logging.getLogger("harn.eventlog")

Payload = Any | Callable[[], Any]
"""A payload, or a function that makes it later."""

AuditRecord = tuple[str, str, Payload, Mapping[str, Any] | None, int]
"""Topic, kind, payload, headers, and when it happened in wall milliseconds."""


class Receipt(Protocol):
    """A record that makes its own payload when it is called; see `EventLog.recorder`.

    It is kept for long and called once: it must say the same whenever that is.
    """

    @property
    def kind(self) -> str:
        """The kind of the record."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Its headers."""

    @property
    def at(self) -> int:
        """When it happened, in wall milliseconds."""

    def __call__(self) -> Any:
        """Return the payload."""


def to_draft(record: AuditRecord) -> Draft | None:
    """Make a draft of *record*; None, with a line in the log, if its payload cannot be written."""
    topic, kind, payload, headers, at = record
    try:
        found = draft(topic, kind, payload() if callable(payload) else payload, headers)
    except Exception as error:
        logger.warning("an audit record for %s was dropped: %s", topic, error)
        return None
    return Draft(found.topic, found.kind, found.payload, found.headers, at)
