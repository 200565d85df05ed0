"""Which Python values are JSON, and which part of a value is not.

JSON has objects with text keys, arrays, text, finite numbers, booleans and null. Dataclasses,
msgspec Structs, pydantic models and objects with an `as_dict` are written as objects. Everything
else is an error, also values that an encoder would silently convert: bytes, sets, datetimes,
decimals, enums, UUIDs. A value that is read must be the value that was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from math import isfinite
from types import NoneType
from typing import Any

import msgspec

_TEXT = {str}
_SCALARS = {str, int, float, bool, NoneType}
_CONTAINERS = {dict, list, tuple}
_PLAIN = _SCALARS | _CONTAINERS
_SAFE = {str, bool, NoneType}
_NEVER_NAN = {str, int, bool, NoneType}
LONGEST_PATH = 200
DIGITS = 4300
"""The longest number that Python converts to text and back."""
LARGEST = 10**DIGITS

WAYS_OUT = {
    "bytes": "send base64 text",
    "bytearray": "send base64 text",
    "memoryview": "send base64 text",
    "set": "send a sorted list",
    "frozenset": "send a sorted list",
    "datetime": "send its isoformat()",
    "date": "send its isoformat()",
    "time": "send its isoformat()",
    "timedelta": "send its total_seconds()",
    "Decimal": "send its text",
    "UUID": "send its text",
}


def is_plain(value: Any, encoded: bytes | None = None) -> bool:
    """Tell whether *value* consists of dicts, lists, tuples and scalars only: the usual case.

    The value must have been encoded before, so that it cannot contain itself. *encoded* is its
    JSON: without a `null` in it, which stands for NaN and infinity too, no float is checked.

    >>> is_plain({"a": [1, "b", None]}), is_plain({"a": {1}}), is_plain([float("inf")])
    (True, False, False)
    """
    return _is_flat(value) or _is_plain_throughout(
        value, encoded is not None and b"null" not in encoded
    )


def _is_flat(value: Any) -> bool:
    # Most payloads are a flat object without a float. This takes half of the time, and the
    # JSON is not searched for a null, which takes as long again. With up to 20 items the loop is
    # faster than two sets of types.
    if type(value) is not dict:
        return type(value) in _NEVER_NAN
    for key, item in value.items():
        if type(key) is not str or type(item) not in _NEVER_NAN:
            return False
    return True


def _is_plain_throughout(value: Any, finite: bool) -> bool:
    left = [value]
    while left:
        item = left.pop()
        inside: Any = item
        if type(item) is dict:
            if item and set(map(type, item)) != _TEXT:
                return False
            inside = item.values()
        elif type(item) not in _CONTAINERS:
            inside = (item,)
        kinds = set(map(type, inside))
        if not kinds <= _SCALARS:
            if not kinds <= _PLAIN:
                return False
            left.extend([each for each in inside if type(each) in _CONTAINERS])
        if finite or float not in kinds:
            continue
        if not all(isfinite(each) for each in inside if type(each) is float):
            return False
    return True


_Link = tuple[Any, str]
"""The path to a value: the link of its container (None for the whole), and its own part."""


def first_fault(value: Any, path: str) -> str | None:
    """Return which part of *value* is not JSON, and why; *path* is the name of the whole.

    >>> first_fault({"items": [1, {"at": b"x"}]}, "payload")
    'payload.items[1].at is a bytes; send base64 text'
    """
    left: list[tuple[_Link, Any]] = [((None, path), value)]
    while left:
        link, item = left.pop()
        if (fault := _fault(item)) is not None:
            return f"{_written(link)} {fault}"
        found = [((link, part), each) for part, each in _inside(item) if type(each) not in _SAFE]
        left.extend(reversed(found))
    return None


def _fault(item: Any) -> str | None:
    """Return why *item* itself is not JSON; None if it is."""
    if isinstance(item, Enum):
        return f"is an enum ({type(item).__name__}); send its value"
    if isinstance(item, float) and not isfinite(item):
        return f"is {item}; JSON has no NaN or infinity: send null or text"
    if isinstance(item, int) and abs(item) >= LARGEST:
        return f"is a number of more than {DIGITS:,} digits; send text"
    if isinstance(item, dict):
        for key in item:
            if not isinstance(key, str) or isinstance(key, Enum):
                kind = type(key).__name__
                return f"has the key {key!r:.40}, a {kind}; the keys of an object are text"
        return None
    if item is None or isinstance(item, str | int | float | list | tuple) or _is_object(item):
        return None
    kind = type(item).__name__
    way_out = WAYS_OUT.get(kind) or _way_out_of_library(item)
    return f"is a {kind}; {way_out or 'send what JSON has: objects, arrays, text, numbers'}"


def _way_out_of_library(item: Any) -> str | None:
    """Return how a value of numpy or pandas is sent."""
    library = type(item).__module__.partition(".")[0]
    if library not in ("numpy", "pandas"):
        return None
    for name in ("isoformat", "tolist", "to_dict"):
        if hasattr(item, name):
            return f"send its {name}({repr('records') if name == 'to_dict' else ''})"
    return "send null"  # pandas.NA


def _is_object(item: Any) -> bool:
    return not isinstance(item, type) and (
        isinstance(item, msgspec.Struct)
        or hasattr(item, "__dataclass_fields__")
        or hasattr(item, "model_dump")
        or hasattr(item, "as_dict")
    )


def _inside(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values inside *item*, each with its part of the path."""
    if isinstance(item, dict):
        for key, value in item.items():
            yield f".{key}", value
    elif isinstance(item, list | tuple):
        for number, value in enumerate(item):
            yield f"[{number}]", value
    elif isinstance(item, msgspec.Struct):
        for name in item.__struct_fields__:
            yield f".{name}", getattr(item, name)
    elif hasattr(item, "__dataclass_fields__"):
        for name in item.__dataclass_fields__:
            if hasattr(item, name):
                yield f".{name}", getattr(item, name)
    elif hasattr(item, "model_dump"):
        return  # pydantic writes its own JSON
    elif hasattr(item, "as_dict"):
        yield "", item.as_dict()


def _written(link: _Link) -> str:
    parts: list[str] = []
    while link is not None:
        link, part = link
        parts.append(part)
    path = "".join(reversed(parts))
    return path if len(path) <= LONGEST_PATH else f"{path[:LONGEST_PATH]}..."
