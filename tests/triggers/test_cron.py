"""Schedules, clock changes and what missed instants are worth."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption, Runtime, trigger_register
from harn.clock import from_iso, iso
from harn.triggers import Triggers, cron
from harn.triggers.cron import LATE_MS, MOST_AT_ONCE, Schedule, check_schedule, due

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def instants(expression: str, zone: str, after: str, n: int) -> list[str]:
    schedule = check_schedule(expression, zone)
    return [iso(ms)[:16] for ms in islice(schedule.after(from_iso(after)), n)]


@pytest.mark.parametrize("expression", ["30 1 * * *", "0 30 1 * * *"])
def test_T3_a_fixed_time_that_comes_twice_fires_once(expression: str) -> None:
    found = instants(expression, "America/New_York", "2026-10-31T12:00:00Z", 3)

    assert found == ["2026-11-01T05:30", "2026-11-02T06:30", "2026-11-03T06:30"]


@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_T3_a_fixed_time_that_is_jumped_over_fires_right_after_the_gap(expression: str) -> None:
    found = instants(expression, "America/New_York", "2026-03-07T12:00:00Z", 2)

    assert found == ["2026-03-08T07:00", "2026-03-09T06:30"]


def test_an_interval_goes_on_through_the_change() -> None:
    found = instants("*/30 * * * *", "America/New_York", "2026-11-01T05:00:00Z", 4)

    assert found == ["2026-11-01T05:30", "2026-11-01T06:00", "2026-11-01T06:30", "2026-11-01T07:00"]


def test_seconds_may_come_in_front() -> None:
    assert next(check_schedule("15 * * * * *").after(0)) == 15_000
    assert next(check_schedule("*/20 * * * * *").after(21_000)) == 40_000


def test_the_date_is_the_schedules_own() -> None:
    schedule = check_schedule("0 1 * * *", "Asia/Tokyo")
    instant = schedule.next(from_iso("2026-01-01T00:00:00Z"))

    assert instant == from_iso("2026-01-01T16:00:00Z")
    assert schedule.date(instant) == "2026-01-02"


def test_skip_fires_what_is_just_due_and_nothing_older() -> None:
    schedule = Schedule("* * * * *")
    now = 10 * HOUR + 100

    assert due(schedule, now - 200, now).fire == (10 * HOUR,)
    assert due(schedule, now - DAY, now).fire == (10 * HOUR,)
    assert due(schedule, None, now).fire == ()


def test_latest_fires_the_newest_missed_instant_even_after_years() -> None:
    schedule = Schedule("0 2 * * *", catchup="latest")
    now = 400 * DAY

    assert due(schedule, 0, now).fire == (399 * DAY + 2 * HOUR,)
    assert due(Schedule("* * * * *", catchup="latest"), 0, 20 * 365 * DAY).fire == (20 * 365 * DAY,)
    assert due(schedule, 399 * DAY + 2 * HOUR, now).fire == ()


def test_all_fires_every_missed_instant_in_order_and_in_portions() -> None:
    schedule = Schedule("* * * * *", catchup="all")
    wanted = [n * MINUTE for n in range(1, 2501)]

    fired: list[int] = []
    last = 0
    while True:
        step = due(schedule, last, 2500 * MINUTE)
        assert len(step.fire) <= MOST_AT_ONCE
        fired += step.fire
        last = step.seen_ms
        if not step.more:
            break

    assert fired == wanted


@pytest.mark.parametrize("catchup", ["latest", "all"])
def test_without_a_past_a_minute_is_looked_back(catchup: Any) -> None:
    schedule = Schedule("* * * * *", catchup=catchup)

    assert due(schedule, None, 5 * MINUTE + 10).fire == (5 * MINUTE,)
    assert due(Schedule("0 * * * *", catchup=catchup), None, HOUR + LATE_MS + 1).fire == ()


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(
        ["* * * * *", "*/7 * * * *", "0 2 * * *", "30 1 * * 0", "15 */6 * * *", "5 * * * * *"]
    ),
    st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe"]),
    st.sampled_from(["latest", "all"]),
    st.lists(st.integers(1, 3 * DAY), min_size=1, max_size=6),
    st.integers(0, 800).map(lambda days: 1_767_225_600_000 + days * DAY),
)
def test_T3_no_instant_fires_twice_and_all_fires_each(
    expression: str, zone: str, catchup: Any, steps: list[int], start: int
) -> None:
    schedule = Schedule(expression, zone, catchup)

    fired: list[int] = []
    last = start
    for now in (start + sum(steps[: n + 1]) for n in range(len(steps))):
        more = True
        while more:
            step = due(schedule, last, now)
            fired += step.fire
            last, more = step.seen_ms, step.more

    assert fired == sorted(set(fired))
    if catchup == "all":
        assert fired == _until(schedule, start, start + sum(steps))


def _until(schedule: Schedule, start: int, end: int) -> list[int]:
    found: list[int] = []
    for ms in schedule.after(start):
        if ms > end:
            return found
        found.append(ms)
    return found


@pytest.mark.parametrize(
    "expression",
    ["", "x", "* * * *", "60 * * * *", "0 0 30 2 *", "1/2/3 * * * *", "@daily", "* * * * * * *",
     None, 5, "* * * * *\n", "0 0 * * ²", "0" * 300, "*/0 * * * *", "5-1 * * * *"],
)  # fmt: skip
def test_a_bad_schedule_is_refused_by_name(expression: Any) -> None:
    with pytest.raises(InvalidOption, match=r"match\.schedule"):
        check_schedule(expression)


@pytest.mark.parametrize(
    "zone",
    [
        "+02:00",
        "UTC-5",
        "../../etc/passwd",
        "/etc/passwd",
        "",
        "Europe",
        "localtime",
        "posix/UTC",
        "a\0b",
        5,
    ],
)
def test_only_iana_zones_are_zones(zone: Any) -> None:
    with pytest.raises(InvalidOption, match=r"match\.timezone"):
        check_schedule("* * * * *", zone)


def test_a_bad_catchup_is_refused_with_a_suggestion() -> None:
    with pytest.raises(InvalidOption, match="did you mean 'latest'"):
        check_schedule("* * * * *", None, "lates")


@pytest.fixture
def no_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without a database of time zones, as small images are."""

    def forget() -> None:
        zoneinfo.ZoneInfo.clear_cache()
        cron._zone.cache_clear()

    known = zoneinfo.TZPATH
    for name in {"tzdata", *(each for each in sys.modules if each.startswith("tzdata."))}:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.reset_tzpath(())
    forget()
    yield
    zoneinfo.reset_tzpath(known)
    forget()


@pytest.mark.usefixtures("no_zones")
def test_without_a_database_of_zones_utc_works_and_others_say_what_to_install() -> None:
    assert instants("0 2 * * *", "UTC", "2026-01-01T00:00:00Z", 1) == ["2026-01-01T02:00"]

    with pytest.raises(InvalidOption, match="install the package tzdata"):
        check_schedule("0 2 * * *", "Europe/Berlin")


async def test_an_option_that_is_none_leaves_what_match_says(runtime: Runtime) -> None:
    await trigger_register(
        id="t",
        kind="cron",
        provider="cron",
        match={"schedule": "0 2 * * *", "timezone": "Asia/Tokyo"},
        handler=lambda event: None,
        schedule=None,
        timezone=None,
    )

    binding = runtime.service(Triggers).get("t")
    assert binding.schedule == Schedule("0 2 * * *", "Asia/Tokyo")
