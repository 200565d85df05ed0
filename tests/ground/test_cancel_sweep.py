"""A cancel at every await point of the ground's public coroutines leaves nothing behind."""

from __future__ import annotations

import asyncio

from harn import Runtime, sleep
from harn.testing import FakeClock, fresh_runtime
from tests.fake_clock import fake_clock
from tests.sweep import Run, sweep


async def test_a_cancelled_sleep_calls_its_timer_off() -> None:
    async with fresh_runtime(autojump=True) as runtime:

        async def case() -> None:
            await sleep("1s")
            await sleep(0)

        def check(run: Run) -> None:
            assert fake_clock(runtime).pending == 0

        assert await sweep(case, check) >= 4


async def test_a_runtime_that_is_cancelled_anywhere_still_closes_everything() -> None:
    opened: list[str] = []
    closed: list[str] = []

    class Service:
        def __init__(self, runtime: Runtime) -> None:
            opened.append("service")

        async def aclose(self) -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            closed.append("service")

    async def background() -> None:
        opened.append("task")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append("task")

    async def case() -> None:
        async with Runtime() as runtime:
            runtime.service(Service)
            runtime.own(asyncio.ensure_future(background()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def check(run: Run) -> None:
        assert sorted(opened) == sorted(closed)

    assert await sweep(case, check) >= 8


async def test_a_cancelled_advance_stops_the_clock_where_it_is() -> None:
    clocks: list[FakeClock] = []

    async def case() -> None:
        async with fresh_runtime() as runtime:
            clocks.append(fake_clock(runtime))
            for second in range(1, 4):
                runtime.clock.call_at(second, lambda: None)
            await clocks[-1].advance("3s")

    def check(run: Run) -> None:
        assert clocks.pop().monotonic() <= 3

    assert await sweep(case, check) >= 8
