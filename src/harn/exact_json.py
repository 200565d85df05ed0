"""JSON that reads back as the same value, or is not written at all.

JSON turns a tuple into a list and the key 1 into "1". The arguments and the result of a durable
call are stored for a later process, so they must not change.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
_SCALARS = frozenset({str, int, bool, type(None)})


def to_exact_json(value: Any) -> bytes | None:
    """Write *value* as JSON if reading it back gives the same value; return None if it would not.

    >>> to_exact_json({"ids": [1, 2]}), to_exact_json((1, 2))
    (b'{"ids":[1,2]}', None)
    """
    if not is_exact(value):
        return None
    try:
        try:
            return _encoder.encode(value)
        except OverflowError:  # huge ints: the standard library writes them, msgspec does not
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    except (RecursionError, ValueError):
        # Too deep, an int of too many digits, or a lone surrogate: as an escape it would make the
        # record that holds it unreadable.
        return None


def from_exact_json(written: bytes) -> Any:
    """Read back what `to_exact_json` wrote."""
    return json.loads(written)


def is_exact(value: Any) -> bool:
    """Tell whether JSON can hold *value* without a change.

    >>> is_exact({"ids": [1, 2]}), is_exact((1, 2)), is_exact({1: 2})
    (True, False, False)
    """
    try:
        return _is_exact(value)
    except RecursionError:
        return False


def _is_exact(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        inside = value
    elif kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        inside = value.values()
    else:
        return False
    for each in inside:  # noqa: SIM110 - a generator costs more than the check itself
        if type(each) not in _SCALARS and not _is_exact(each):
            return False
    return True
