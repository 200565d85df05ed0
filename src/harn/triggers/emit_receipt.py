"""What an emit returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harn.records import Record, fields_of
from harn.triggers.dispatch_state import DispatchHandle


@dataclass(frozen=True, slots=True)
class EmitReceipt(Record):
    """The result of an emit: its event, and a handle for each trigger that it reached.

    *duplicate* says that the id was known: then nothing was dispatched, and *event_id* names the
    first event with that id.

    >>> import harn
    >>> async def main() -> tuple[str, bool, tuple[()]]:
    ...     receipt = await harn.channel_emit("orders", {"n": 1})
    ...     return receipt.name, receipt.duplicate, receipt.dispatched
    >>> harn.run(main)
    ('orders', False, ())
    """

    event_id: str
    name: str
    duplicate: bool
    dispatched: tuple[DispatchHandle, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return every field, JSON-ready."""
        return {**fields_of(self), "dispatched": [each.as_dict() for each in self.dispatched]}
