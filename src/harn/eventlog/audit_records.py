"""What `EventLog.record` takes, and how it becomes a draft when it is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from harn.storage import Draft, draft

logger: logging.Logger = logging.getLogger("harn.eventlog")

Payload = Any | Callable[[], Any]
"""A payload, or a function that makes it later."""

AuditRecord = tuple[str, str, Payload, Mapping[str, Any] | bytes | None, int]
"""Topic, kind, payload, headers, and when it happened in wall milliseconds.

Headers that are bytes are those of a receipt, encoded."""
SHORT = 65536
"""Bytes of a receipt that is not checked again."""

_encode = msgspec.json.encode


class Receipt(Protocol):
    """A record that makes its own payload when it is called; see `EventLog.recorder`.

    It is kept for long and called once: it must say the same whenever that is. The payload is a
    struct of text, whole numbers and None, so that it is written without a look at each value.
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

    def __call__(self) -> msgspec.Struct:
        """Return the payload."""


class Receipts(msgspec.Struct, frozen=True, eq=False):
    """Receipts of one topic that were recorded one after the other."""

    topic: str
    headers: Mapping[str, bytes]
    """The headers of each kind, encoded."""
    noted: list[Receipt]


def to_drafts(receipts: Receipts) -> list[Draft]:
    """Make drafts of *receipts*, without those whose payload cannot be written."""
    topic, headers = receipts.topic, receipts.headers
    made: list[Draft] = []
    for noted in receipts.noted:
        kind = noted.kind
        try:
            written = _written(noted())
        except Exception:
            written = None  # `to_draft` tries again, and says why not
        if written is not None:
            made.append(Draft(topic, kind, written, headers[kind], noted.at))
        elif (item := to_draft((topic, kind, noted, headers[kind], noted.at))) is not None:
            made.append(item)
    return made


def to_draft(record: AuditRecord) -> Draft | None:
    """Make a draft of *record*; None, with a line in the log, if its payload cannot be written."""
    topic, kind, payload, headers, at = record
    try:
        made = payload() if callable(payload) else payload
        if isinstance(made, msgspec.Struct):
            made = msgspec.structs.asdict(made)
        if not isinstance(headers, bytes):
            found = draft(topic, kind, made, headers)
            return Draft(topic, kind, found.payload, found.headers, at)
        written = _written(made)
        if written is None:
            written = draft(topic, kind, made).payload
        return Draft(topic, kind, written, headers, at)
    except Exception as error:
        logger.warning("an audit record for %s was dropped: %s", topic, error)
        return None


def _written(receipt: Any) -> bytes | None:
    """Return the payload of a receipt as JSON; None if it has to be looked at more closely."""
    try:
        written = _encode(receipt)
    except TypeError:  # text of a class of its own, such as a key that is an enum's
        return None
    return written if len(written) < SHORT else None
