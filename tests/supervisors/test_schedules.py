"""Ten thousand random failure schedules in virtual time (G17)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from harn import Runtime
from harn.testing import VirtualTimeLoop
from tests.supervisors.supervisor_schedules import Schedule, check

SCHEDULES = 10_000
TOGETHER = 500


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of failures as drawn are no news."""
    caplog.set_level(logging.CRITICAL, "harn.supervisors")


@pytest.mark.parametrize("first", range(0, SCHEDULES, SCHEDULES // 4))
def test_U1_U3_U4_U5_hold_under_random_failures(first: int, at_least: Callable[[int], int]) -> None:
    async def play(seeds: range) -> list[Schedule]:
        async with Runtime(seed=0) as runtime:
            schedules = [Schedule(seed, runtime.clock) for seed in seeds]
            await asyncio.gather(*(schedule.play() for schedule in schedules))
            for schedule in schedules:
                check(schedule)
            return schedules

    count = 0
    for start in range(first, first + at_least(SCHEDULES // 4), TOGETHER):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            played = runner.run(play(range(start, start + TOGETHER)))
        count += sum(len(schedule.lives) for schedule in played)

    assert count > SCHEDULES // 4
