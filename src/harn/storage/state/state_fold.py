"""The rows of stored values as a fold of the log: the latest record of each key."""

from __future__ import annotations

import hashlib

import msgspec

from harn.storage.contract import Event
from harn.storage.indexes import Table
from harn.storage.operations import Operation, ask, ask_many
from harn.topics import AGENT_STATE, STORED_VALUES

COLUMNS = ("space", "key", "version", "is_deleted", "entry", "value")
SMALL = 512
"""Bytes of a value that its row holds, so that reading it is one step; others stay in the log."""
SET, DELETED = "state_set", "state_deleted"
LONGEST = 400
"""Bytes of a space's name in a row: an index of PostgreSQL holds 2,700, and a key has 2,048."""

_MARKS = {STORED_VALUES: "v:", AGENT_STATE: "a:"}
"""How the spaces of a topic begin."""


def space_of(topic: str, name: str) -> str:
    """Return the space of a namespace or session in the rows; no two share one.

    >>> space_of(STORED_VALUES, "default"), space_of(AGENT_STATE, "default")
    ('v:default', 'a:default')
    """
    raw = name.encode()
    if len(raw) <= LONGEST:
        return _MARKS[topic] + name
    return f"{_MARKS[topic]}\x01{hashlib.sha256(raw).hexdigest()}"  # no name holds a control


def kept_in_row(value: bytes | None) -> bytes | None:
    """Return *value* if it is small enough for its row."""
    return None if value is None or len(value) > SMALL else value


class StateIndex:
    """The fold of both topics of stored values."""

    name = "state"
    keeps_latest = True
    tables: tuple[Table, ...] = (
        Table("state_keys", COLUMNS, "dump_state", "clear_state", "restore_state"),
    )

    def wants(self, topic: str) -> bool:
        """Tell whether *topic* holds values."""
        return topic in _MARKS

    def fold(self, event: Event) -> Operation[None]:
        """Make *event* the latest record of its key."""
        if event.kind not in (SET, DELETED):
            return
        record = event.payload
        space = space_of(event.topic, record["space"])
        value = None if event.kind == DELETED else kept_in_row(msgspec.json.encode(record["value"]))
        row = (space, record["key"], record["version"], int(event.kind == DELETED), event.id, value)
        yield ask_many("put_state", COLUMNS, [row])

    def held(self, topic: str, below: int, dedupe_ms: int) -> Operation[int | None]:
        """Return the oldest record that is the latest one of its key."""
        mark = _MARKS[topic]
        [(oldest,)] = yield ask("oldest_state", first=mark, last=mark[0] + ";")
        return None if oldest is None else int(oldest)

    def forget(self, topic: str, below: int) -> Operation[None]:
        """Keep what is there: no trim removes the latest record of a key."""
        return
        yield
