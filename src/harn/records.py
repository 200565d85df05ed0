"""Turning a record into a dict.

A record is a dataclass or a `msgspec.Struct` that a caller receives: a snapshot, a receipt, a
report. It inherits `as_dict` from `Record`, or from `SparseRecord` to leave out fields that are
None. A record with another form defines `as_dict` itself, with `fields_of`.
"""

from __future__ import annotations

from typing import Any


class Record:
    """A record that shows every field, None included.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Bucket(Record):
    ...     key: str
    ...     limit: int | None = None
    >>> Bucket("calls").as_dict()
    {'key': 'calls', 'limit': None}
    """

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return every field by name, JSON-ready as far as the values are."""
        return fields_of(self)


class SparseRecord(Record):
    """A record that leaves out the fields that are None.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Limits(SparseRecord):
    ...     rpm: int | None = None
    ...     tpm: int | None = None
    >>> Limits(rpm=600).as_dict()
    {'rpm': 600}
    """

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return every field that is not None by name, JSON-ready as far as the values are."""
        return {name: value for name, value in fields_of(self).items() if value is not None}


def fields_of(record: Any) -> dict[str, Any]:
    """Return the public fields of *record*: the values themselves, no copies.

    A record that holds other records shows those in an `as_dict` of its own. This function does
    not look into values: a payload may be large, and may hold a record that the caller put there.
    """
    names = _names.get(type(record)) or _find_names(type(record))
    return {name: getattr(record, name) for name in names}


_names: dict[type, tuple[str, ...]] = {}


def _find_names(kind: Any) -> tuple[str, ...]:
    # A dataclass names its fields in one attribute, a `msgspec.Struct` in another.
    names = getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__
    found = _names[kind] = tuple(name for name in names if not name.startswith("_"))
    return found
