"""Durations as people write them: `"30s"`, `250`, `timedelta(minutes=2)`.

One parser serves options, manifests and command-line flags. A string carries its unit; a bare
number means milliseconds where the option's name ends in `_ms`, and seconds everywhere else.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from harn.errors import InvalidOption

Duration = int | float | timedelta | str

ACCEPTED = 'a duration such as "250ms", "30s", "2m", "1h", "7d", a timedelta, or a number'
LONGEST = 100 * 365 * 86_400.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_TEXT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|s|m|h|d|w)", re.ASCII)


def to_seconds(value: Duration, option: str = "duration") -> float:
    """Read *value* as seconds; *option* names it in the error and gives a bare number its unit.

    >>> to_seconds("250ms"), to_seconds(2), to_seconds(2, "timeout_ms")
    (0.25, 2.0, 0.002)
    """
    seconds = _read(value, option)
    if seconds is None or math.isnan(seconds) or seconds < 0:
        raise InvalidOption(option, value, ACCEPTED)
    if seconds > LONGEST:
        raise InvalidOption(option, value, "at most 100 years")
    return seconds


def to_ms(value: Duration, option: str = "duration") -> int:
    """Read *value* as whole milliseconds, rounded up so that a wait is never cut short.

    >>> to_ms("30s"), to_ms(250, "window_ms")
    (30000, 250)
    """
    return math.ceil(round(to_seconds(value, option) * 1000, 6))


def _read(value: object, option: str) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float):
        try:
            return float(value) * (0.001 if option.endswith("_ms") else 1.0)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and (match := _TEXT.fullmatch(value.strip())):
        return float(match[1]) * _UNITS[match[2]]
    return None


def to_text(seconds: float) -> str:
    """Write *seconds* the short way, in its largest whole unit.

    >>> to_text(90), to_text(0.25), to_text(7200)
    ('90s', '250ms', '2h')
    """
    ms = round(seconds * 1000)
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def roughly(ms: float) -> str:
    """Write *ms* the way people say it: its two largest units, the rest cut off.

    >>> roughly(250), roughly(5_000), roughly(299_049), roughly(7_265_000), roughly(172_800_000)
    ('250ms', '5s', '4m59s', '2h1m', '2d')
    """
    units = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
    left = max(0, int(ms))
    for place, (unit, size) in enumerate(units):
        if left >= size:
            whole, left = divmod(left, size)
            smaller = units[place + 1 : place + 2] if unit not in ("s", "ms") else ()
            rest = "".join(f"{left // each}{name}" for name, each in smaller if left >= each)
            return f"{whole}{unit}{rest}"
    return "0ms"
