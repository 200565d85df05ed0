"""Two processes before one store, played by two runtimes: order, silence, and coming back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from harn import Bucket, RateLimitGrant, Runtime, StorageBusy, durable_rate_limit_acquire
from harn.context import current_frame_var
from harn.ratelimit import Limiter, process_identity
from harn.running_processes import process_started
from harn.storage import ask, limits
from harn.testing import FakeClock
from tests.linux_only import HAS_PROC


class Neighbour:
    """A runtime of its own; what it acquires belongs to it, not to the calling task."""

    def __init__(self, clock: FakeClock, where: str | Path) -> None:
        self.runtime = Runtime(clock=clock)
        self.where = where
        self.tasks: list[asyncio.Task[RateLimitGrant]] = []

    def take(self, key: str = "k", **options: Any) -> asyncio.Task[RateLimitGrant]:
        token = current_frame_var.set(self.runtime.frame)
        try:
            options = {"limit": 1, "window_ms": 1000, **options}
            call = durable_rate_limit_acquire(key=key, state_path=self.where, **options)
            self.tasks.append(asyncio.get_running_loop().create_task(call))
            return self.tasks[-1]
        finally:
            current_frame_var.reset(token)

    @property
    def line(self) -> Any:
        return self.runtime.service(Limiter).at(self.where)

    def fall_silent(self) -> None:
        self.line._batcher.is_held = True

    def wake_up(self) -> None:
        self.line._batcher.is_held = False
        self.line._batcher.wake()


@pytest.fixture(params=["sqlite", "postgres"])
async def street(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[list[Neighbour]]:
    """Three neighbours that share one store by one fake clock."""
    where: str | Path = tmp_path / "limits.sqlite"
    if request.param == "postgres":
        where = request.getfixturevalue("postgres_url")
    async with contextlib.AsyncExitStack() as stack:
        neighbours = [Neighbour(clock, where) for _ in range(3)]
        for each in neighbours:
            await stack.enter_async_context(each.runtime)
        yield neighbours
        for each in neighbours:
            each.wake_up()
            for task in each.tasks:
                task.cancel()
        await asyncio.gather(
            *(t for each in neighbours for t in each.tasks), return_exceptions=True
        )


async def tickets(neighbour: Neighbour) -> list[str]:
    line = neighbour.line
    found = await line.store.run(lambda: limits.list_buckets(0), write=False)
    return [each.key for each in found for _ in range(each.waiting)]


def _note(order: list[int], number: int, _: object) -> None:
    order.append(number)


async def test_R7_the_caller_that_came_first_is_served_first_in_whichever_process(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take()
    order: list[int] = []
    for number in range(9):
        task = street[number % 3].take()
        task.add_done_callback(partial(_note, order, number))
        await clock.settle()

    await clock.advance("12s")

    assert order == list(range(9))


async def test_no_request_overtakes_even_without_waiting(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take(limit=2)
    waiting = street[1].take(limit=2, units=2)
    await clock.settle()

    refused = await street[2].take(limit=2, timeout_ms=0)

    assert refused.timed_out
    await clock.advance("1s")
    assert waiting.done()


async def test_units_given_back_by_one_process_are_found_by_another(
    street: list[Neighbour], clock: FakeClock
) -> None:
    grant = await street[0].take(limit=10, units=10)
    waiting = street[1].take(limit=10, units=5)
    await clock.settle()

    await grant.settle({"k": 5})
    await clock.advance("250ms")

    assert waiting.done()


async def test_R7_a_process_that_falls_silent_loses_its_place_after_its_lease(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take()
    silent = street[1].take()
    await clock.settle()
    street[1].fall_silent()
    behind = street[2].take()

    await clock.advance("2s")
    assert not behind.done()
    await clock.advance("2s")
    assert behind.done()
    assert not silent.done()


async def test_R7_a_silent_neighbour_holds_up_no_caller_while_there_is_room_for_both(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take(limit=2, units=2)
    silent = street[1].take(limit=2)
    await clock.settle()
    street[1].fall_silent()
    behind = street[2].take(limit=2)
    await clock.settle()
    third = street[0].take(limit=2)

    await clock.advance("1100ms")  # everything is free, and the silent one's lease still runs

    assert behind.done()
    assert not third.done()
    street[1].wake_up()
    await clock.advance("100ms")
    assert silent.done()


async def test_a_clock_that_is_set_back_keeps_no_silent_neighbour_in_line(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take()
    silent = street[1].take()
    await clock.settle()
    street[1].fall_silent()
    clock._start_ms -= 3_600_000
    behind = street[2].take()

    await clock.advance("10s")

    assert behind.done()
    assert not silent.done()


async def test_a_process_that_wakes_from_silence_keeps_its_place(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take()
    silent = street[1].take(limit=1, units=5)
    await clock.settle()
    street[1].fall_silent()
    overtaking = street[2].take()
    await clock.advance("3500ms")
    assert overtaking.done()
    late = street[2].take()
    await clock.settle()

    street[1].wake_up()
    await clock.advance("600ms")
    assert silent.done()
    assert not late.done()
    await clock.advance("2s")
    assert late.done()
    assert await tickets(street[0]) == []


async def test_a_long_wait_keeps_its_place_by_renewing_its_lease(
    street: list[Neighbour], clock: FakeClock
) -> None:
    await street[0].take(window_ms=60_000)
    waiting = street[1].take(window_ms=60_000)
    await clock.settle()
    behind = street[2].take(window_ms=60_000)

    await clock.advance("30s")
    assert await tickets(street[0]) == ["k", "k"]
    await clock.advance("30s")

    assert waiting.done()
    assert not behind.done()


async def test_a_busy_store_costs_a_waiter_nothing_but_time(
    street: list[Neighbour], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await street[0].take()
    waiting = street[1].take()
    await clock.settle()
    driver = street[1].line.store.driver
    working = driver.submit
    failures = 0

    def busy(recipe: Any, **options: Any) -> None:
        nonlocal failures
        failures += 1
        raise StorageBusy("locked")

    monkeypatch.setattr(driver, "submit", busy)
    await clock.advance("1500ms")
    assert failures >= 2
    with pytest.raises(StorageBusy):
        await street[1].take("other")
    monkeypatch.setattr(driver, "submit", working)
    await clock.advance("1s")

    assert waiting.done()


async def test_a_ticket_that_no_caller_waits_with_is_removed(
    street: list[Neighbour], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await street[0].take()
    line = street[1].line
    street[1].take()
    await clock.settle()

    def join_unknown() -> Any:
        [(bucket, *_)] = yield ask("limit_bucket", key="k")
        yield from limits.join([(bucket, 0, line.owner, 1, 1)])

    await line.store.run(join_unknown)  # as an operation whose answer was lost leaves it
    line._may_have_strays = True
    await clock.advance("2s")

    assert await tickets(street[0]) == []


async def test_rows_that_no_longer_count_are_removed(
    street: list[Neighbour], clock: FakeClock
) -> None:
    for _ in range(20):
        await asyncio.gather(*(street[0].take(limit=10_000) for _ in range(50)))
        await clock.advance("200ms")

    def count() -> Any:
        rows = yield ask("limit_rows", bucket=1, first=0, count=10_000)
        return len(rows)

    assert await street[0].line.store.run(count) <= 250 + 50 + 64


async def test_a_bucket_that_was_forgotten_and_made_again_counts_for_every_process(
    street: list[Neighbour], clock: FakeClock
) -> None:
    for key in ("other", "k"):
        await street[0].take(key)
    await clock.advance("2h")
    await street[0].take("other")  # and forgets what has been unused for an hour
    await clock.settle()

    assert (await street[0].take()).ok
    assert (await street[1].take(timeout_ms=0)).timed_out


async def test_a_caller_that_waits_for_a_bucket_to_be_made_holds_no_other(
    postgres_url: str,
) -> None:
    dsn, schema = postgres_url.split("?schema=")
    waits = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with Runtime(), await psycopg.AsyncConnection.connect(dsn) as other:
        await durable_rate_limit_acquire(key="old", limit=2, state_path=postgres_url)
        await other.execute(f"SET search_path TO {schema}")
        await other.execute("INSERT INTO limit_buckets (key) VALUES ('new')")
        both = [Bucket("new", limit=2), Bucket("old", limit=2)]
        waiting = asyncio.ensure_future(
            durable_rate_limit_acquire(buckets=both, state_path=postgres_url)
        )
        while not await (await other.execute(waits)).fetchall():
            await asyncio.sleep(0.01)

        await other.execute("SELECT 1 FROM limit_buckets WHERE key = 'old' FOR UPDATE NOWAIT")
        await other.commit()

        assert (await waiting).ok


def test_a_process_knows_itself_alive_and_its_dead_child_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    boot, space, _, _, _ = process_identity.owner_here("x").split("/")
    name = "/".join((boot, space, str(child.pid), process_started(child.pid) or "-", "x"))
    assert not process_identity.is_gone(name)

    child.kill()
    if HAS_PROC:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_identity.is_gone(name), "a zombie counts as gone"
    child.communicate()

    assert process_identity.is_gone(name)
    assert not process_identity.is_gone(process_identity.owner_here("y"))


@pytest.mark.skipif(not HAS_PROC, reason="only Linux says when a process started")
def test_a_pid_that_was_given_to_another_process_is_not_taken_for_the_old_one() -> None:
    boot, space, pid, _, unique = process_identity.owner_here("x").split("/")

    assert process_identity.is_gone("/".join((boot, space, pid, "1", unique)))
    assert not process_identity.is_gone("/".join(("another-boot", space, pid, "1", unique)))
    assert not process_identity.is_gone("/".join((boot, "another-space", "1", "1", unique)))
