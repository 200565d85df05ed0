"""Columns of values as PostgreSQL's binary arrays, for statements that `unnest` them.

A whole column is encoded at once. psycopg's adapters choose an encoding for each value, which takes
longer than the server needs to store it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from struct import Struct, pack
from typing import Any, ClassVar

_TYPED = re.compile(r"%\((\w+)\)s::(\w+)\[\]")
_NULL = b"\xff\xff\xff\xff"


class Encoded(bytes):
    """An array in PostgreSQL's binary format; *oid* is the number of its type."""

    __slots__ = ()
    oid: ClassVar[int] = 0


class _Bigints(Encoded):
    __slots__ = ()
    oid = 1016


class _Smallints(Encoded):
    __slots__ = ()
    oid = 1005


class _Texts(Encoded):
    __slots__ = ()
    oid = 1009


class _Bytes(Encoded):
    __slots__ = ()
    oid = 1001


@functools.cache
def array_types(text: str) -> dict[str, Callable[[Sequence[Any]], Encoded]]:
    """Return the encoder of each parameter of *text* that is an array, by name."""
    return {name: _ENCODERS[of] for name, of in _TYPED.findall(text) if of in _ENCODERS}


def _header(values: Sequence[Any], oid: int, nulls: bool) -> bytes:
    if not values:
        return pack(">iii", 0, 0, oid)
    return pack(">iiiii", 1, nulls, oid, len(values), 1)


def _numbers(values: Sequence[Any], oid: int, size: int, code: str) -> bytes:
    if None in values:
        each = f">i{code}"
        items = [_NULL if value is None else pack(each, size, value) for value in values]
        return _header(values, oid, True) + b"".join(items)
    flat = chain.from_iterable(zip(repeat(size), values, strict=False))
    return _header(values, oid, False) + pack(">" + f"i{code}" * len(values), *flat)


# An operation on one job has dozens of arrays, and nearly all of them have one value or none.
_NO_BIGINTS = _Bigints(_header((), 20, False))
_NO_TEXTS = _Texts(_header((), 25, False))
_ONE_TEXT = _header((0,), 25, False)
_ONE_BLOB = _header((0,), 17, False)
_one_bigint = Struct(">iiiiiiq").pack


def _bigints(values: Sequence[Any]) -> Encoded:
    if not values:
        return _NO_BIGINTS
    if len(values) == 1 and values[0] is not None:
        return _Bigints(_one_bigint(1, 0, 20, 1, 1, 8, values[0]))
    return _Bigints(_numbers(values, 20, 8, "q"))


def _smallints(values: Sequence[Any]) -> Encoded:
    return _Smallints(_numbers(values, 21, 2, "h"))


def encode_texts(values: Sequence[Any]) -> Encoded:
    """Encode a column of texts; equal texts, such as names, are encoded once."""
    if not values:
        return _NO_TEXTS
    if len(values) == 1 and values[0] is not None:
        text = values[0].encode()
        return _Texts(_ONE_TEXT + len(text).to_bytes(4, "big") + text)
    items = {each: _NULL if each is None else _item(each.encode()) for each in set(values)}
    texts = b"".join([items[each] for each in values])
    return _Texts(_header(values, 25, None in items) + texts)


def _item(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _blobs(values: Sequence[Any]) -> Encoded:
    if len(values) == 1 and values[0] is not None:
        return _Bytes(_ONE_BLOB + len(values[0]).to_bytes(4, "big") + values[0])
    nulls = None in values
    parts = [_header(values, 17, nulls)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts.append(len(value).to_bytes(4, "big"))
            parts.append(value)
    return _Bytes(b"".join(parts))


_ENCODERS: dict[str, Callable[[Sequence[Any]], Encoded]] = {
    "bigint": _bigints,
    "smallint": _smallints,
    "text": encode_texts,
    "bytea": _blobs,
}
ENCODED: frozenset[type] = frozenset((_Bigints, _Smallints, _Texts, _Bytes))
"""The types of columns that are encoded already."""
