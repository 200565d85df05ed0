from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

import harn
import harn.clock as harn_clock
from harn import InvalidOption, Runtime, current_runtime, sleep
from harn.clock import sleep_until
from harn.testing import FakeClock, fresh_runtime, mock_time


async def test_time_stands_still_until_it_is_moved(runtime: Runtime, clock: FakeClock) -> None:
    began = clock.now_ms()
    sleeper = asyncio.ensure_future(sleep("5m"))

    await clock.advance("299s")
    assert not sleeper.done()

    await clock.advance("1s")
    assert sleeper.done()
    assert clock.now_ms() - began == 300_000


@pytest.mark.parametrize("minutes", [pytest.param(10**400, id="huge"), float("nan"), -1])
async def test_time_moves_by_what_a_timedelta_holds(clock: FakeClock, minutes: float) -> None:
    with pytest.raises(InvalidOption, match="duration"):
        await clock.advance(minutes=minutes)


async def test_due_timers_fire_in_order_and_what_they_woke_runs_in_between(
    runtime: Runtime, clock: FakeClock
) -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            await sleep(nap)
            seen.append((name, clock.monotonic()))

    tasks = [asyncio.ensure_future(sleeper("a", 2, 2)), asyncio.ensure_future(sleeper("b", 1, 2))]

    await clock.advance(minutes=1)

    assert seen == [("b", 1), ("a", 2), ("b", 3), ("a", 4)]
    assert all(task.done() for task in tasks)


async def test_a_zero_delay_needs_no_advance(runtime: Runtime, clock: FakeClock) -> None:
    fired = asyncio.Event()
    clock.call_at(clock.monotonic(), fired.set)

    await sleep(0)
    await fired.wait()

    assert clock.monotonic() == 0


async def test_a_cancelled_timer_does_not_fire_and_leaves_nothing(clock: FakeClock) -> None:
    fired: list[int] = []
    timers = [clock.call_at(i + 1, partial(fired.append, i)) for i in range(1000)]
    for timer in timers[1:]:
        timer.cancel()
        timer.cancel()

    assert len(clock._timers) < 200

    await clock.advance("1h")

    assert fired == [0]
    assert clock._live == 0


async def test_advance_waits_for_store_operations(clock: FakeClock) -> None:
    loop = asyncio.get_running_loop()
    done: list[str] = []

    def finish() -> None:
        done.append("stored")
        clock.activity.store_ended()

    def begin() -> None:
        clock.activity.store_began()
        threading.Timer(0.02, lambda: loop.call_soon_threadsafe(finish)).start()

    clock.call_at(1, begin)

    await clock.advance("1s")

    assert done == ["stored"]


async def test_advance_waits_for_plain_functions_on_their_threads(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harn_clock, "PATIENCE", 60.0)
    at: list[float] = []
    go = threading.Semaphore(0)

    def plain() -> None:
        go.acquire()  # until the main thread has let the loop come to rest
        at.append(clock.monotonic())
        raise ValueError

    threading.Timer(0.05, go.release, (4,)).start()
    trying = asyncio.ensure_future(harn.retry(4, plain, backoff_ms=1000))
    await clock.advance("10s")

    assert at == [0, 1, 3, 7]
    assert trying.done()


async def test_advance_does_not_wait_for_a_thread_that_waits_for_time_or_forever(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harn_clock, "PATIENCE", 0.01)
    done = threading.Event()
    sleeper = harn.spawn(lambda: harn.from_thread(sleep, "5m"))
    stuck = harn.spawn(done.wait)

    await clock.advance("5m")
    assert sleeper.done()
    assert not stuck.done()

    done.set()
    await clock.settle()  # nothing waits for it any more, not even now
    assert await stuck


@pytest.mark.parametrize("mocked", [False, True])
async def test_autojump_jumps_when_a_thread_waits_for_time(mocked: bool) -> None:
    async with Runtime(clock=None if mocked else FakeClock(autojump=True)):
        clock = mock_time(0) if mocked else current_runtime().clock
        began = clock.now_ms()

        await harn.spawn(lambda: harn.from_thread(sleep, "1h"))

        assert clock.now_ms() - began == 3_600_000


async def test_floating_point_dust_does_not_hide_a_timer(clock: FakeClock) -> None:
    fired: list[float] = []
    clock.call_at(0.1 + 0.2, lambda: fired.append(clock.monotonic()))

    await clock.advance("300ms")

    assert len(fired) == 1


async def test_autojump_moves_time_when_nothing_else_can_run() -> None:
    async with fresh_runtime(autojump=True) as runtime:
        await asyncio.gather(*(sleep(f"{minutes}m") for minutes in range(100)))

        assert runtime.clock.monotonic() == 99 * 60


async def test_a_wait_for_a_time_that_is_cancelled_leaves_no_timer(clock: FakeClock) -> None:
    waiting = asyncio.ensure_future(sleep_until(clock, clock.monotonic() + 3600))
    await asyncio.sleep(0)
    assert clock.pending == 1

    waiting.cancel()
    await asyncio.wait((waiting,))

    assert clock.pending == 0


async def test_autojump_never_jumps_over_a_thread_at_work() -> None:
    async with fresh_runtime(autojump=True) as runtime:
        release = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(None, release.wait)
        sleeper = asyncio.ensure_future(sleep("1h"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not sleeper.done()

        release.set()
        await work
        await sleeper

        assert runtime.clock.monotonic() == 3600


async def test_a_background_timer_is_no_reason_to_jump() -> None:
    clock = FakeClock(autojump=True)
    fired: list[str] = []
    clock.call_at(1, lambda: fired.append("heartbeat"), background=True)
    for _ in range(20):
        await asyncio.sleep(0)
    assert fired == []

    async with fresh_runtime(clock=clock):
        await sleep(2)

    assert fired == ["heartbeat"]


async def test_mock_time_makes_a_sleep_move_the_clock_and_is_undone_after_the_block() -> None:
    async with Runtime() as runtime:
        real = runtime.clock
        with mock_time(1000) as clock:
            assert current_runtime().clock is clock
            assert clock.now_ms() == 1000
            await sleep("5s")
            assert clock.now_ms() == 6000
            await clock.advance("1s")
            assert clock.now_ms() == 7000

        assert runtime.clock is real


@pytest.mark.parametrize("start", ["yesterday", "2026-01-01T00:00:00", None, True, 1.5])
def test_a_start_without_a_time_zone_is_refused(start: Any) -> None:
    with pytest.raises(InvalidOption, match="start"):
        FakeClock(start)


@pytest.mark.parametrize("ms", [-1, True, "1000", None])
async def test_mock_time_wants_whole_milliseconds(ms: Any) -> None:
    with pytest.raises(InvalidOption, match="ms="):
        mock_time(ms)


async def test_the_clock_cannot_go_back(clock: FakeClock) -> None:
    with pytest.raises(InvalidOption):
        await clock.advance(-1)
    with pytest.raises(InvalidOption):
        await clock.advance(minutes=-1)


def test_the_same_seeded_program_makes_the_same_ids_and_times() -> None:
    async def program() -> list[object]:
        runtime = current_runtime()
        ids = [runtime.ids.new("x") for _ in range(3)]
        await sleep("3s")
        return [*ids, runtime.ids.uuid7(), runtime.clock.now_ms(), runtime.ids.random.random()]

    def once() -> list[object]:
        found: list[object] = harn.run(program, clock=FakeClock(autojump=True), seed="same")
        return found

    assert once() == once()
