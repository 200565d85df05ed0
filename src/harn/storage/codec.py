"""What may enter the log, and in which form it is kept: checked once, the same on every engine.

A payload is JSON, at most 10 MiB of it and at most 200 levels deep. NUL inside a string is fine
(it travels escaped); a lone surrogate is not text and is refused. `strict_json.py` says what else
is not JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from harn.errors import InvalidOption, StorageCorrupt
from harn.storage.contract import Draft
from harn.storage.strict_json import first_fault, is_plain

MAX_PAYLOAD = 10 * 1024 * 1024
MAX_VALUE = 10_000_000
"""Bytes of a value that a record holds beside names: the record is no larger than `MAX_PAYLOAD`."""
MAX_HEADERS = 64 * 1024
MAX_DEPTH = 200
SHALLOW = 2 * MAX_DEPTH
"""Bytes of JSON that cannot be deeper than that: each level opens and closes."""
MAX_TOPIC = 200
MAX_KIND = 128

MOST_KNOWN = 10_000
"""Topics and kinds that are not checked again."""

EMPTY = b"{}"

_TOPIC = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_known_topics: set[str] = set()
_known_kinds: set[str] = set()
_decode: Callable[[bytes | str], Any] = msgspec.json.Decoder().decode


def decode(kept: bytes | str) -> Any:
    """Read stored JSON; text that is not JSON was damaged (`StorageCorrupt`)."""
    try:
        return _decode(kept)
    except (ValueError, TypeError, RecursionError) as error:
        raise StorageCorrupt(f"not JSON: {error}") from error


def draft(topic: str, kind: str, payload: Any, headers: Mapping[str, Any] | None = None) -> Draft:
    """Check and encode one record.

    >>> draft("news", "hello", {"a": 1}).payload
    b'{"a":1}'
    """
    told = EMPTY if headers is None else encode_headers(headers)
    try:
        if topic in _known_topics and kind in _known_kinds:
            return Draft(topic, kind, encode("payload", payload, MAX_PAYLOAD), told)
    except TypeError:
        pass  # no strings: refused below
    check_topic(topic)
    check_kind(kind)
    return Draft(topic, kind, encode("payload", payload, MAX_PAYLOAD), told)


def check_topic(topic: str) -> str:
    """Return *topic* if it may be one: ASCII letters, digits, `.`, `_`, `-`."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or len(topic) > MAX_TOPIC:
        raise InvalidOption(
            "topic", topic, f"1 to {MAX_TOPIC} ASCII letters, digits, '.', '_' or '-'"
        )
    if len(_known_topics) < MOST_KNOWN:
        _known_topics.add(topic)
    return topic


def check_kind(kind: str) -> str:
    """Return *kind* if it may be one: short, printable text."""
    if not isinstance(kind, str) or not 0 < len(kind) <= MAX_KIND or not kind.isprintable():
        raise InvalidOption("kind", kind, f"1 to {MAX_KIND} printable characters")
    if len(_known_kinds) < MOST_KNOWN:
        _known_kinds.add(kind)
    return kind


def encode_headers(headers: Mapping[str, Any] | None) -> bytes:
    """Encode *headers*, an object with string keys; none is an empty one."""
    if not headers:
        if headers is None or isinstance(headers, Mapping):
            return EMPTY
        raise InvalidOption("headers", headers, "a mapping with string keys, or None")
    if not isinstance(headers, Mapping) or not all(isinstance(key, str) for key in headers):
        raise InvalidOption("headers", headers, "a mapping with string keys, or None")
    return encode("headers", dict(headers), MAX_HEADERS)


def encode(option: str, value: Any, at_most: int, *, is_exact: bool = False) -> bytes:
    """Encode *value* as JSON, refusing by the name *option* what JSON or we cannot hold.

    With *is_exact* the caller knows that JSON does not change it (`exact_json.is_exact`).
    """
    try:
        encoded = _encoder.encode(value)
    except RecursionError:
        raise InvalidOption(
            option, _sketch(value), f"JSON of at most {MAX_DEPTH} levels that does not hold itself"
        ) from None
    except (TypeError, ValueError, OverflowError) as error:
        why = first_fault(value, option) or error
        raise InvalidOption(option, _sketch(value), f"a JSON value ({why})") from None
    if (size := len(encoded)) > at_most:
        raise InvalidOption(option, f"{size:,} bytes", f"JSON of at most {at_most:,} bytes")
    if not is_exact and not is_plain(value, encoded):
        fault = first_fault(value, option)
        if fault is not None:
            raise InvalidOption(option, _sketch(value), f"a JSON value ({fault})")
    if size > SHALLOW and encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH:
        _check_depth(option, _decode(encoded))
    return encoded


def _as_json(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # a pydantic model, without knowing pydantic
        return value.model_dump(mode="json", by_alias=True)  # the names that it reads
    if hasattr(value, "as_dict"):
        return value.as_dict()
    for kind in (str, int, float):
        if isinstance(value, kind):  # of a class of its own, but text or a number all the same
            return kind(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


_encoder = msgspec.json.Encoder(enc_hook=_as_json)


def _check_depth(option: str, value: Any) -> None:
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(MAX_DEPTH):
        level = [inner for item in level for inner in _containers(item)]
        if not level:
            return
    raise InvalidOption(option, _sketch(value), f"JSON of at most {MAX_DEPTH} levels")


def _containers(item: list[Any] | dict[str, Any]) -> list[Any]:
    inside = item.values() if isinstance(item, dict) else item
    return [inner for inner in inside if isinstance(inner, list | dict)]


def _sketch(value: Any) -> str:
    try:
        return repr(value)[:80]
    except Exception:  # too deep, a number of too many digits, or a repr that fails
        return f"a {type(value).__name__}"
