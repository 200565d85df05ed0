"""Checks of numbers that a caller gives: true and false are not numbers here.

Python counts `True` as the int 1. An option that accepted it would hide a mistake.
"""

from __future__ import annotations

from typing import TypeGuard

from harn.errors import InvalidOption

LARGEST = 2**53
"""The largest whole number that every reader of JSON keeps exact."""


def is_whole(value: object) -> TypeGuard[int]:
    """Say whether *value* is an int and not a bool.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether *value* is an int or a float and not a bool.

    >>> is_number(3), is_number(3.5), is_number("3"), is_number(True)
    (True, True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


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


def _range(least: int | None, most: int | None) -> str:
    if most is None:
        return "a whole number" if least is None else f"a whole number of at least {least:,}"
    if least is None:
        return f"a whole number of at most {most:,}"
    return f"a whole number from {least:,} to {most:,}"
