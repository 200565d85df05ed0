"""Checks of numbers and words that a caller gives, and the reader of whole numbers in a text.

True and false are not numbers here. Python counts `True` as the int 1. An option that accepted it
would hide a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypeGuard, TypeVar

from harn.errors import InvalidOption, did_you_mean

T = TypeVar("T")

LARGEST = 2**53
"""The largest whole number that every reader of JSON keeps exact."""


def is_whole(value: object) -> TypeGuard[int]:
    """Say whether *value* is an int and not a bool.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether *value* is an int or a float that is finite as a float, and not a bool.

    >>> is_number(3), is_number(3.5), is_number("3"), is_number(True), is_number(10**400)
    (True, True, False, False, False)
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def whole_number(
    option: str,
    value: object,
    *,
    least: int | None = None,
    most: int | None = None,
    wanted: str | None = None,
) -> int:
    """Return *value* if it is a whole number from *least* to *most*; raise `InvalidOption` if not.

    *wanted* says what the option accepts where the two limits do not say it all.

    >>> whole_number("limit", 3, least=1)
    3
    >>> whole_number("limit", 0, least=1)
    Traceback (most recent call last):
    ...
    harn.errors.InvalidOption: limit=0 is not accepted: a whole number of at least 1
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or (least is not None and value < least)
        or (most is not None and value > most)
    ):
        raise InvalidOption(option, value, wanted or _range(least, most))
    return value


def one_of(option: str, value: T, known: Collection[str]) -> T:
    """Return *value* if it is one of *known*; raise `InvalidOption` with the nearest one if not.

    >>> one_of("mode", "reed", ("read", "write"))
    Traceback (most recent call last):
    ...
    harn.errors.InvalidOption: mode='reed' is not accepted: one of read, write; did you mean 'read'?
    """
    if not isinstance(value, str) or value not in known:
        raise InvalidOption(option, value, f"one of {', '.join(known)}{did_you_mean(value, known)}")
    return value


def read_whole(text: str, digits: int = 16) -> int | None:
    """Return the number in *text* if that is digits alone, and at most so many; None if not.

    `int` also reads signs, blanks, underscores and the digits of other scripts.

    >>> read_whole("0042"), read_whole("-1"), read_whole(" 1"), read_whole("1" * 17)
    (42, None, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def _range(least: int | None, most: int | None) -> str:
    if most is None:
        return "a whole number" if least is None else f"a whole number of at least {least:,}"
    if least is None:
        return f"a whole number of at most {most:,}"
    return f"a whole number from {least:,} to {most:,}"
