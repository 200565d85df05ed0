"""The wait queue itself: order, sweeping, and the three ways a wait can end."""

from __future__ import annotations

import asyncio

import pytest

from harn.sync.wait_queue import GRANTED, TIMED_OUT, WAITING, Waiter, WaitQueue, guard, park
from harn.testing import FakeClock


def waiter() -> Waiter:
    return Waiter().wait_as("wait", None, asyncio.get_running_loop())


async def test_those_that_gave_up_are_skipped() -> None:
    queue: WaitQueue[Waiter] = WaitQueue()
    a, b, c = waiter(), waiter(), waiter()
    queue.extend((a, b, c))

    a.withdraw()
    b.future.cancel()

    assert queue.first() is c


async def test_the_dead_are_swept_out_before_they_outnumber_the_living() -> None:
    queue: WaitQueue[Waiter] = WaitQueue()
    living = waiter()
    queue.append(living)

    for _ in range(10_000):
        gone = waiter()
        queue.append(gone)
        gone.withdraw()
        queue.note_left()

    assert len(queue) < 200
    assert queue.first() is living


async def test_a_hundred_thousand_cancelled_waiters_leave_in_no_time() -> None:
    queue: WaitQueue[Waiter] = WaitQueue()
    many = [waiter() for _ in range(100_000)]
    queue.extend(many)

    for each in reversed(many[1:]):
        each.withdraw()
        queue.note_left()

    assert queue.first() is many[0]
    assert len(queue) < 1000


async def test_a_timeout_is_a_state_and_a_late_grant_finds_no_waiter(clock: FakeClock) -> None:
    one = waiter()
    parked = asyncio.ensure_future(park(one, 2.0, clock))
    await asyncio.sleep(0)

    await clock.advance("2s")
    await parked

    assert one.state == TIMED_OUT
    assert clock.pending == 0


async def test_Y4_a_grant_that_came_before_the_timeout_stays_a_grant(clock: FakeClock) -> None:
    one = waiter()
    parked = asyncio.ensure_future(park(one, 2.0, clock))
    await asyncio.sleep(0)

    with guard:
        one.wake(GRANTED)
    one.expire()
    await parked

    assert one.state == GRANTED


async def test_cancelling_a_parked_waiter_calls_its_timer_off(clock: FakeClock) -> None:
    one = waiter()
    parked = asyncio.ensure_future(park(one, 2.0, clock))
    await asyncio.sleep(0)

    parked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parked

    assert one.state == WAITING
    assert clock.pending == 0


async def test_a_thread_wakes_a_waiter_through_the_loop() -> None:
    one = waiter()

    def grant() -> None:
        with guard:
            one.wake(GRANTED)

    await asyncio.to_thread(grant)
    await park(one)

    assert one.state == GRANTED


def test_waking_a_waiter_whose_loop_is_closed_is_harmless() -> None:
    async def main() -> Waiter:
        one = waiter()
        one.future.add_done_callback(lambda _: None)
        return one

    left_over = asyncio.run(main())

    with guard:
        left_over.wake(GRANTED)

    assert left_over.state == GRANTED
