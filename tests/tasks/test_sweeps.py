"""G7: cancel every public coroutine of this room at every await, in both modes."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import harn
from harn import Runtime, scope, spawn
from tests.sweep import Run, one_run, sweep
from tests.tasks.programs import Program, TurnClock


class Boom(Exception):
    pass


async def turns(n: int = 3) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def tidy() -> None:
    try:
        await turns(6)
    finally:
        await turns(2)


async def give(n: Any = 1) -> Any:
    await turns(2)
    return n


async def fail(n: Any = 1) -> Any:
    await turns(2)
    raise Boom(n)


async def in_scope() -> None:
    async with scope():
        spawn(tidy)
        handle = spawn(give)
        await turns(2)
        await handle
        async with scope():
            spawn(tidy)


async def failing_scope() -> None:
    try:
        async with scope():
            spawn(tidy)
            spawn(fail)
            await tidy()
    except Boom:
        pass


async def failing_nested_scope() -> None:
    try:
        async with scope():
            spawn(fail)
            async with scope():
                spawn(fail)
                await tidy()
    except Boom:
        pass
    await turns(1)


async def awaited_failure() -> None:
    async with scope():
        try:
            await spawn(fail)
        except Boom:
            pass


async def deferring() -> None:
    async with scope():
        harn.defer(turns)
        harn.defer(give)
        await turns(1)


async def in_deadline() -> None:
    async with harn.deadline("1h"):
        await give()


async def past_deadline() -> None:
    try:
        async with harn.deadline("2ms"):
            async with scope():
                spawn(tidy)
                await turns(50)
    except harn.DeadlineExceeded:
        pass
    await turns(1)


async def graceful() -> None:
    handle = spawn(tidy)
    try:
        await harn.cancel_graceful(handle, "2ms")
    finally:
        handle.cancel()
        await handle._join()


async def dropping() -> None:
    async with scope():
        await harn.drop(spawn(tidy))


async def retrying() -> None:
    assert await harn.retry(3, fail, backoff_ms=1) is None


async def sleeping() -> None:
    await harn.sleep("3ms")


async def waiting() -> None:
    async with scope():
        await harn.wait_agent([spawn(give), spawn(give)])


async def feed() -> AsyncIterator[int]:
    for n in range(4):
        await asyncio.sleep(0)
        yield n


def each(cap: int) -> Callable[[], Any]:
    return lambda: harn.parallel_each(range(4), give, cap)


async def failing_each() -> None:
    try:
        await harn.parallel_each(
            range(5), lambda n: fail() if n == 3 else tidy(), 2, isolation="task"
        )
    except Boom:
        pass


async def settle() -> None:
    await harn.parallel_settle(range(4), fail, 2)


async def race() -> None:
    async def run(n: int) -> Any:
        return await (give(n) if n == 2 else fail(n))

    await harn.parallel_race(range(4), run, 2)


async def fed() -> None:
    await harn.parallel_each(feed(), give, 2)
    await harn.parallel_each(feed(), give)


def streaming(cap: int, source: Callable[[], Any] = lambda: range(4)) -> Callable[[], Any]:
    async def read() -> None:
        async with harn.parallel_each_stream(source(), give, cap) as stream:
            async for _ in stream:
                await asyncio.sleep(0)

    return read


async def failing_stream() -> None:
    try:
        async with harn.parallel_each_stream(range(4), fail, 2) as stream:
            async for _ in stream:
                pass
    except Boom:
        pass


async def thread() -> None:
    async with scope():
        await spawn(threading.Event().wait, 0.001)


async def reach() -> None:
    def works() -> None:
        harn.from_thread(give)

    async with scope():
        await spawn(works)


async def whole_runtime() -> None:
    async with Runtime(clock=TurnClock()):
        harn.defer(turns)
        spawn(tidy)
        await turns(2)


CASES = {
    "scope": in_scope,
    "failing scope": failing_scope,
    "failing nested scope": failing_nested_scope,
    "awaited failure": awaited_failure,
    "defer": deferring,
    "deadline": in_deadline,
    "past deadline": past_deadline,
    "cancel_graceful": graceful,
    "drop": dropping,
    "retry": retrying,
    "sleep": sleeping,
    "wait_agent": waiting,
    "parallel_each": each(0),
    "parallel_each capped": each(2),
    "failing parallel_each": failing_each,
    "parallel_settle": settle,
    "parallel_race": race,
    "async source": fed,
    "stream": streaming(0),
    "stream capped": streaming(2),
    "stream of an async source": streaming(2, feed),
    "stream of an async source without a cap": streaming(0, feed),
    "failing stream": failing_stream,
    "thread": thread,
    "from_thread": reach,
    "runtime": whole_runtime,
}


@pytest.mark.parametrize("case", CASES)
async def test_G7_a_cancel_at_any_await_comes_out_and_leaves_nothing(case: str) -> None:
    async with Runtime(clock=TurnClock()) as runtime:

        def check(run: Run) -> None:
            assert runtime.tasks == {runtime.root}, run
            assert runtime.root.waiting is None, run
            assert not runtime.frame.cleanups, run
            assert runtime.clock.activity.working == 0, run

        assert await sweep(CASES[case], check) >= 4


PROGRAMS = 400


@pytest.mark.parametrize("batch", range(4))
async def test_G7_random_programs_are_swept_too(batch: int, at_least: Callable[[int], int]) -> None:
    """More than five thousand schedules in the ordinary run."""
    logging.getLogger("harn.tasks").setLevel(logging.CRITICAL)
    count = at_least(PROGRAMS) // 4
    schedules = 0
    for seed in range(batch * count, (batch + 1) * count):
        for race in (False, True):
            for k in range(1, 1000):
                program = Program(seed)
                run = await one_run(program.main, k, race)
                schedules += 1
                where = f"seed {seed} k={k} race={race}"
                assert program.cleanups == program.deferred, where
                if not run.cancelled:
                    break
                cancelled = isinstance(run.error, asyncio.CancelledError)
                assert cancelled or program.converted, f"{where}: became {run.error!r}"
    logging.getLogger("harn.tasks").setLevel(logging.NOTSET)

    assert schedules >= 13 * count


async def test_the_sweep_finds_what_asyncio_swallows() -> None:
    """The sweep itself, on a known fault and on code that is right."""

    async def swallows() -> None:
        try:
            await turns(2)
        except asyncio.CancelledError:
            pass

    with pytest.raises(AssertionError, match="swallowed"):
        await sweep(swallows)

    async def leaks() -> None:
        asyncio.get_running_loop().create_task(turns(50))
        await turns(1)

    with pytest.raises(AssertionError, match="left alive"):
        await sweep(leaks)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await turns()
