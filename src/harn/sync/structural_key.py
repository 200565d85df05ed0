"""Keys by structural value: equal structures have equal keys.

`1`, `True`, `1.0` and `"1"` are four keys; the order of a dict or a set does not matter; a list and
a tuple differ. NaN does not equal itself, so it cannot be a key. Objects that Python compares by
identity (a client, a function) are keys by identity.
"""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import msgspec

from harn.errors import InvalidOption

ACCEPTED = (
    "strings, numbers, bytes, dates, paths, UUIDs, enums, dataclasses, structs, lists, tuples, "
    "sets and dicts of them, or an object that Python compares by identity"
)
_BY_VALUE = (bytes, int, complex, date, datetime, time, timedelta, Fraction, uuid.UUID, PurePath)


def structural(value: Any) -> object:
    """Return a hashable key that is equal for equal structures, and only for them.

    >>> structural({"a": 1, "b": [2]}) == structural({"b": [2], "a": 1})
    True
    >>> len({structural(each) for each in (1, True, 1.0, "1")})
    4
    """
    if type(value) is str:
        return value
    try:
        return _key(value)
    except RecursionError:
        raise InvalidOption("resource", "...", "something that does not contain itself") from None


def _key(value: Any) -> object:
    kind = type(value)
    if kind is str or value is None:
        return value
    if _is_nan(value):
        raise InvalidOption("resource", value, "anything but NaN, which does not equal itself")
    if isinstance(value, enum.Enum):
        return kind, value.name
    if kind is float or kind is Decimal or kind in _BY_VALUE or isinstance(value, PurePath):
        return kind, value
    if kind is bytearray:
        return kind, bytes(value)
    return _compound(kind, value)


def _is_nan(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float | complex) and value != value


def _compound(kind: type[Any], value: Any) -> object:
    if kind is bool:
        return kind, value
    if isinstance(value, list | tuple):
        return kind, tuple(map(_key, value))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(_key, value))
    if isinstance(value, Mapping):
        return kind, frozenset((_key(name), _key(each)) for name, each in value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return kind, tuple(_key(getattr(value, each.name)) for each in dataclasses.fields(value))
    if isinstance(value, msgspec.Struct):
        return kind, tuple(_key(getattr(value, name)) for name in value.__struct_fields__)
    return _by_identity(kind, value)


def _by_identity(kind: type[Any], value: Any) -> object:
    if isinstance(value, str | int | float | bytes):  # a subclass of its own
        return kind, value
    if getattr(kind, "__eq__", None) is not object.__eq__ and not callable(value):
        raise InvalidOption("resource", value, ACCEPTED)
    return SameObject(value)


class SameObject:
    """An object as a key by identity. The key keeps it alive, so that its id is not used again."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other._value is self._value
