"""Indexes beside the log: what is folded from it, kept by the same transactions, rebuildable.

An index says which topics it folds, how one record changes it, and how its tables are written
out, emptied and filled again. With that, `verify` can fold the log into a private SQLite and
compare, `rebuild` can put the result in place on any engine, and a trim knows what is unsettled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from harn.storage.contract import Event
from harn.storage.operations import Operation


class Table(msgspec.Struct, frozen=True):
    """A table of an index, by the names of the queries that handle it whole.

    *dump* selects *columns* in a fixed order of rows, *clear* empties it, *restore* inserts one
    row (it is asked for many at once).
    """

    name: str
    columns: tuple[str, ...]
    dump: str
    clear: str
    restore: str


class Index(Protocol):
    """A fold of the log."""

    name: str
    tables: tuple[Table, ...]
    keeps_latest: bool
    """Whether what it holds back stays even if a trim is forced."""

    def wants(self, topic: str) -> bool:
        """Tell whether records of *topic* change this index."""

    def fold(self, event: Event) -> Operation[None]:
        """Apply *event*, which is of a wanted topic; records come in the order they were made."""

    def held(self, topic: str, below: int, dedupe_ms: int) -> Operation[int | None]:
        """Return the oldest offset of *topic* that is not settled, or None if all below are.

        The dedupe key of a settled job counts for *dedupe_ms* more.
        """

    def forget(self, topic: str, below: int) -> Operation[None]:
        """Remove what was kept of settled records of *topic* below an offset, which are gone."""


INDEXES: list[Index] = []
"""Every index there is, after the first call of `all_indexes`."""
_bringers: list[Callable[[], list[Index]]] = []


def bring_indexes(bring: Callable[[], list[Index]]) -> None:
    """Let `all_indexes` call *bring* when the indexes are first needed.

    `harn/storage/__init__.py` calls this, above the rooms that have an index. Python runs that file
    before any inner room is used.
    """
    _bringers.append(bring)


def all_indexes() -> list[Index]:
    """Return every index there is. Their rooms are loaded now, since most commands need none."""
    if not INDEXES:
        INDEXES[:] = [index for bring in _bringers for index in bring()]
    return INDEXES
