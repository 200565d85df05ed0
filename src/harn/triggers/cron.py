"""Schedules: when a cron trigger is due, and which missed instants it fires. Pure.

Expressions have five fields, or six with seconds in front. A named zone follows its wall clock: a
schedule with a fixed time fires once when the clock is set back over that time, and right after
the gap when the clock is set forward over it. An instant is missed if it is later than the last
one that fired; the store keeps that one for all processes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import Any, Literal, get_args

import msgspec

from harn.errors import InvalidOption, did_you_mean
from harn.option_checks import read_whole

Catchup = Literal["skip", "latest", "all"]

LATE_MS = 60_000
"""An instant this late counts as missed. Without an earlier instant, `latest` and `all` look back
this far."""
MOST_AT_ONCE = 1000
"""Missed instants that one `due` returns; `all` asks again for the rest."""

_NO_ZONES = ("posix", "right", "localtime", "Factory")


class Schedule(msgspec.Struct, frozen=True):
    """When a trigger is due: an expression in a zone, and what happens to missed instants."""

    expression: str
    timezone: str = "UTC"
    catchup: Catchup = "skip"

    def after(self, ms: int) -> Iterator[int]:
        """Yield the instants later than *ms*, as wall milliseconds, oldest first.

        >>> next(Schedule("0 2 * * *").after(0))
        7200000
        """
        from cronsim import CronSim  # only a cron trigger needs it

        fields, offset = _without_seconds(self.expression)
        start = datetime.fromtimestamp(ms // 1000 - offset, UTC).astimezone(_zone(self.timezone))
        for moment in CronSim(fields, start):
            instant = (int(moment.timestamp()) + offset) * 1000
            if instant > ms:
                yield instant

    def next(self, ms: int) -> int | None:
        """Return the first instant later than *ms*, or None if there is none within 50 years."""
        return next(self.after(ms), None)

    def date(self, ms: int) -> str:
        """Return the date of an instant in the schedule's zone.

        >>> Schedule("0 2 * * *", "Asia/Tokyo").date(1767225600000 - 3_600_000)
        '2026-01-01'
        """
        return (
            f"{datetime.fromtimestamp(ms // 1000, UTC).astimezone(_zone(self.timezone)):%Y-%m-%d}"
        )


class Due(msgspec.Struct, frozen=True):
    """What to fire now, oldest first, and from where to continue."""

    fire: tuple[int, ...]
    seen_ms: int
    """Every instant up to here has been fired or skipped."""
    more: bool = False
    """Whether more missed instants are to be fired at once."""


def due(schedule: Schedule, last_ms: int | None, now_ms: int) -> Due:
    """Decide which instants after *last_ms* and up to *now_ms* fire.

    *last_ms* is the last one that was fired or skipped. With None, `latest` and `all` look one
    minute back, and `skip` does not look back.
    """
    if last_ms is None:
        last_ms = now_ms if schedule.catchup == "skip" else now_ms - LATE_MS
    if schedule.catchup == "skip":
        last_ms = max(last_ms, now_ms - LATE_MS)
    if schedule.catchup == "latest":
        return Due(_latest(schedule, last_ms, now_ms), now_ms)
    instants = tuple(islice(_between(schedule, last_ms, now_ms), MOST_AT_ONCE))
    more = len(instants) == MOST_AT_ONCE
    return Due(instants, instants[-1] if more else now_ms, more)


def _between(schedule: Schedule, after_ms: int, until_ms: int) -> Iterator[int]:
    return takewhile(lambda instant: instant <= until_ms, schedule.after(after_ms))


def _latest(schedule: Schedule, last_ms: int, now_ms: int) -> tuple[int, ...]:
    # Look back over growing periods, so that years of missed minutes are not enumerated.
    stretch = 3_600_000
    while True:
        since = max(last_ms, now_ms - stretch)
        newest = max(_between(schedule, since, now_ms), default=None)
        if newest is not None:
            return (newest,)
        if since == last_ms:
            return ()
        stretch *= 24


def check_schedule(expression: Any, timezone: Any = None, catchup: Any = None) -> Schedule:
    """Read a schedule; raise `InvalidOption` that names the wrong part.

    >>> check_schedule("0 2 * * *", "Europe/Berlin").timezone
    'Europe/Berlin'
    """
    return Schedule(
        check_expression(expression, "match.schedule"),
        check_zone("UTC" if timezone is None else timezone, "match.timezone"),
        check_catchup("skip" if catchup is None else catchup, "match.catchup_mode"),
    )


def check_catchup(catchup: Any, option: str) -> Catchup:
    """Return *catchup* if it is a known mode for missed instants."""
    for known in get_args(Catchup):
        if catchup == known:
            return known  # type: ignore[no-any-return]
    near = did_you_mean(catchup, get_args(Catchup)) if isinstance(catchup, str) else ""
    raise InvalidOption(option, catchup, f'"skip", "latest" or "all"{near}')


def _without_seconds(expression: str) -> tuple[str, int]:
    """Split off a fixed second: the library handles a clock change only with five fields."""
    fields = expression.split()
    second = read_whole(fields[0]) if len(fields) == 6 else None
    return (expression, 0) if second is None else (" ".join(fields[1:]), second)


def check_expression(expression: Any, option: str) -> str:
    """Return *expression* with single spaces, if it is valid and has an instant at all."""
    accepted = 'five cron fields such as "0 2 * * *", or six with seconds in front'
    if not (isinstance(expression, str) and len(expression) <= 200):
        raise InvalidOption(option, expression, accepted)
    if not (expression.isascii() and expression.isprintable()):
        raise InvalidOption(option, expression, accepted)
    from cronsim import CronSim

    try:
        CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    except Exception as error:  # the parser's own error, and others that odd input causes
        raise InvalidOption(option, expression, f"{accepted} ({error})") from None
    plain = " ".join(expression.split())
    if Schedule(plain).next(0) is None:
        raise InvalidOption(option, expression, "a time that exists, within 50 years")
    return plain


def check_zone(name: Any, option: str) -> str:
    """Return *name* if it is a time zone that this machine knows."""
    accepted = 'an IANA zone such as "Europe/Berlin" or "UTC", not an offset'
    if not isinstance(name, str) or name.split("/")[0] in _NO_ZONES:
        raise InvalidOption(option, name, accepted)
    try:
        _zone(name)
    except Exception:  # unknown name, path, directory: the library raises several kinds
        from zoneinfo import available_timezones

        if not available_timezones():
            accepted = '"UTC": this machine knows no other zone; install the package tzdata'
        raise InvalidOption(option, name, accepted) from None
    return name


@functools.lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    # A small image may have no database of zones; the zone of most schedules needs none.
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)
