"""Operations on stored values: read, list, and change them.

Changes of a topic take turns: on PostgreSQL they lock the topic's row first, elsewhere there is one
writer. So what is compared is what is replaced, whichever process wrote it. Several changes share
one transaction; each sees those before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from harn.errors import StorageCorrupt
from harn.storage.codec import EMPTY, decode
from harn.storage.contract import TAKE_OFFSETS, Draft
from harn.storage.log import append, record_at
from harn.storage.operations import Operation, Row, ask, ask_many, ask_together
from harn.storage.state.state_fold import COLUMNS, DELETED, SET, kept_in_row, space_of

logger: logging.Logger = logging.getLogger("harn.storage")

PAGE = 5000
"""Keys that one question lists."""
LAST = "\U0010ffff"
AFTER = "\x01"
"""Behind a key, this is after that key and before every other; no key holds it."""


class ValuePlace(msgspec.Struct, frozen=True):
    """Where a value is: the topic, the namespace or session, and the key."""

    topic: str
    space: str
    key: str

    @property
    def damage(self) -> str:
        """What an error says of a value here that cannot be read."""
        return f"the value of {self.key!r} in {self.space!r} cannot be read; set or delete it"

    @property
    def row_key(self) -> tuple[str, str]:
        """The key of its row."""
        return space_of(self.topic, self.space), self.key


class StoredValue(msgspec.Struct, frozen=True):
    """A value as JSON, None if there is none, and its version, 0 if it was never written."""

    value: bytes | None = None
    version: int = 0
    is_damaged: bool = False
    """Whether the record of the value cannot be read."""


class ValueChange(msgspec.Struct, frozen=True):
    """A request to set or delete a value, always or only if it is as expected.

    *expected* (JSON) and *version* are for a compare and set; the version counts if it is given.
    """

    place: ValuePlace
    action: Literal["set", "delete", "cas"]
    value: bytes = b"null"
    expected: bytes = b"null"
    version: int | None = None


class ChangeResult(msgspec.Struct, frozen=True):
    """Whether a change was made, and what was there before it."""

    is_done: bool
    before: StoredValue
    error: str | None = None


class ChangeResults(msgspec.Struct, frozen=True):
    """The results of some changes, in their order."""

    results: list[ChangeResult]
    changed_nothing: bool = False


class _Record(msgspec.Struct, omit_defaults=True):
    """A record of a change, as the log has it."""

    space: str
    key: str
    version: int
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Record).decode


def read_value(place: ValuePlace) -> Operation[StoredValue]:
    """Read the value at *place*."""
    space, key = place.row_key
    rows = yield ask("state_value", topic=place.topic, space=space, key=key)
    return (yield from _found(place, rows))


def list_keys(topic: str, space: str, prefix: str) -> Operation[list[str]]:
    """List the keys of a namespace or session that begin with *prefix*, in code-point order."""
    within, first, last = space_of(topic, space), prefix, end_of(prefix)
    found: list[str] = []
    while True:
        rows = yield ask("list_state", space=within, first=first, last=last, limit=PAGE)
        found += [key for (key,) in rows]
        if len(rows) < PAGE:
            return found
        first = found[-1] + AFTER


def end_of(prefix: str) -> str:
    """Return the first text after all keys that begin with *prefix*.

    >>> end_of("user/"), end_of("a" + LAST) == "b", end_of("") > LAST * 512
    ('user0', True, True)
    """
    kept = prefix.rstrip(LAST)
    if not kept:
        return LAST * 600  # longer than any key
    last = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if 0xD800 <= last < 0xE000 else last)


def change_values(topic: str, changes: Sequence[ValueChange]) -> Operation[ChangeResults]:
    """Carry out *changes* of one topic, each after the one before it."""
    known = yield from _look(topic, changes)
    results: list[ChangeResult] = []
    records: list[tuple[ValuePlace, StoredValue]] = []
    for change in changes:
        before = known[change.place]
        try:
            after = decide(before, change)
        except StorageCorrupt as error:
            results.append(ChangeResult(False, before, str(error)))
            continue
        results.append(ChangeResult(after is not None, before))
        if after is not None:
            known[change.place] = after
            records.append((change.place, after))
    if not records:
        return ChangeResults(results, changed_nothing=True)
    yield from _write(records)
    return ChangeResults(results)


def decide(before: StoredValue, change: ValueChange) -> StoredValue | None:
    """Return the value that *change* leaves; None if it changes nothing."""
    if change.action == "delete":
        is_there = before.value is not None or before.is_damaged
        return StoredValue(None, before.version + 1) if is_there else None
    if change.action == "cas" and not _is_expected(before, change):
        return None
    return StoredValue(change.value, before.version + 1)


def _is_expected(before: StoredValue, change: ValueChange) -> bool:
    if change.version is not None:
        return before.version == change.version
    if before.is_damaged:
        raise StorageCorrupt(change.place.damage)
    return bool(decode(before.value or b"null") == decode(change.expected))


def _look(topic: str, changes: Sequence[ValueChange]) -> Operation[dict[ValuePlace, StoredValue]]:
    """Lock the topic and read what is there."""
    places = list(dict.fromkeys(change.place for change in changes))
    asked = [ask(TAKE_OFFSETS, topic=topic, count=0, largest=0)]
    for place in places:
        space, key = place.row_key
        asked.append(ask("state_value", topic=topic, space=space, key=key))
    answers: Any = yield ask_together(asked)
    known: dict[ValuePlace, StoredValue] = {}
    for place, rows in zip(places, answers[1:], strict=True):
        known[place] = yield from _found(place, rows)
    return known


def _found(place: ValuePlace, rows: Sequence[Row]) -> Operation[StoredValue]:
    if not rows:
        return StoredValue()
    version, is_deleted, entry, kept, payload = rows[0]
    if is_deleted:
        return StoredValue(None, version)
    if kept is not None:
        return StoredValue(bytes(kept), version)
    if payload is None:  # an engine that keeps its records elsewhere
        payload = yield from record_at(place.topic, entry)
    try:
        value = _decode(bytes(payload)).value
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        logger.warning("record %d of %s cannot be read: %s", entry, place.topic, error)
        return StoredValue(None, version, is_damaged=True)
    return StoredValue(bytes(value) if isinstance(value, msgspec.Raw) else b"null", version)


def _write(records: Sequence[tuple[ValuePlace, StoredValue]]) -> Operation[None]:
    drafts = [_draft(place, found) for place, found in records]
    placed = yield from append(drafts)
    rows: dict[ValuePlace, Row] = {}
    for (place, found), (entry, _) in zip(records, placed, strict=True):
        row = (found.version, int(found.value is None), entry, kept_in_row(found.value))
        rows[place] = (*place.row_key, *row)
    yield ask_many("put_state", COLUMNS, list(rows.values()))


def _draft(place: ValuePlace, found: StoredValue) -> Draft:
    record = _Record(place.space, place.key, found.version)
    if found.value is not None:
        record.value = msgspec.Raw(found.value)
    kind = DELETED if found.value is None else SET
    return Draft(place.topic, kind, msgspec.json.encode(record), EMPTY)
