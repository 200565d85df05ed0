"""`asyncio.wait`, `gather`, `wait_for`, `shield` and `as_completed` take handles and pool tasks."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import harn
from harn import (
    HarnError,
    PoolTaskCancelled,
    PoolTaskFailed,
    Runtime,
    TaskCancelled,
    pool_create,
    run_in_thread,
    scope,
    spawn,
)

Start = Callable[[Callable[[], Any]], Awaitable[Any]]


async def as_handle(fn: Callable[[], Any]) -> Any:
    return spawn(fn)


async def as_pool_task(fn: Callable[[], Any]) -> Any:
    pool = harn.pool_get("work") or await pool_create(name="work", max_concurrent=8)
    return await pool.submit(fn)


kinds = pytest.mark.parametrize("start", [as_handle, as_pool_task])


async def one() -> int:
    await asyncio.sleep(0)
    return 1


async def two() -> int:
    return 2


async def fails() -> None:
    raise ZeroDivisionError("by zero")


async def forever() -> None:
    await asyncio.Event().wait()


@kinds
async def test_wait_returns_the_handles_themselves(runtime: Runtime, start: Start) -> None:
    handles = [await start(one), await start(two), await start(fails)]

    done, pending = await asyncio.wait(handles, timeout=30)

    assert done == set(handles) and pending == set()
    assert [await each for each in handles[:2]] == [1, 2]
    assert isinstance(handles[2].exception(), ZeroDivisionError | PoolTaskFailed)


@kinds
async def test_wait_for_the_first_leaves_the_others_running(runtime: Runtime, start: Start) -> None:
    slow, quick = await start(forever), await start(one)

    done, pending = await asyncio.wait([slow, quick], return_when="FIRST_COMPLETED")

    assert (done, pending) == ({quick}, {slow})
    slow.cancel()
    await asyncio.wait([slow])
    assert slow.cancelled() and slow.done()


@kinds
async def test_wait_for_the_first_exception(runtime: Runtime, start: Start) -> None:
    slow, quick, bad = await start(forever), await start(two), await start(fails)

    done, pending = await asyncio.wait([slow, quick, bad], return_when="FIRST_EXCEPTION")

    assert bad in done and pending >= {slow}
    slow.cancel()


@kinds
async def test_wait_returns_what_has_ended_before(runtime: Runtime, start: Start) -> None:
    handle = await start(one)
    await handle

    done, _ = await asyncio.wait([handle])

    assert done == {handle}


@kinds
async def test_a_wait_that_times_out_or_is_cancelled_leaves_the_task_running(
    runtime: Runtime, start: Start
) -> None:
    slow: Any = await start(forever)
    waiter = asyncio.ensure_future(asyncio.wait([slow]))
    await asyncio.sleep(0)

    assert await asyncio.wait([slow], timeout=0) == (set(), {slow})
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)

    assert not slow.done()
    assert slow.remove_done_callback(print) == 0
    slow.cancel()


@kinds
async def test_gather_gives_values_in_order(runtime: Runtime, start: Start) -> None:
    first, second = await asyncio.gather(await start(one), await start(two))
    assert (first, second) == (1, 2)

    bad = await start(fails)
    (error,) = await asyncio.gather(bad, return_exceptions=True)

    assert isinstance(error, ZeroDivisionError | PoolTaskFailed)


@kinds
@pytest.mark.parametrize(
    "wait",
    [
        lambda handle: asyncio.gather(handle),
        lambda handle: asyncio.wait_for(handle, 30),
        lambda handle: asyncio.shield(handle),
        lambda handle: next(asyncio.as_completed([handle])),
        lambda handle: asyncio.wait([handle]),
    ],
    ids=["gather", "wait_for", "shield", "as_completed", "wait"],
)
async def test_cancelling_the_waiter_does_not_cancel_the_task(
    runtime: Runtime, start: Start, wait: Callable[[Any], Awaitable[Any]]
) -> None:
    slow: Any = await start(forever)

    async def waits() -> None:
        await wait(slow)

    waiter = asyncio.ensure_future(waits())
    for _ in range(5):
        await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter

    assert slow.status == "running"
    slow.cancel()


@kinds
async def test_wait_for_returns_the_value_or_times_out(runtime: Runtime, start: Start) -> None:
    assert await asyncio.wait_for(await start(one), 30) == 1

    slow: Any = await start(forever)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(slow, 0.001)

    assert slow.status == "running"
    slow.cancel()


@kinds
async def test_as_completed_gives_each_value(runtime: Runtime, start: Start) -> None:
    handles = [await start(one), await start(two)]

    assert {await each for each in asyncio.as_completed(handles)} == {1, 2}


@kinds
async def test_callbacks_come_once_in_order_and_in_their_context(
    runtime: Runtime, start: Start
) -> None:
    handle: Any = await start(one)
    seen: list[Any] = []
    variable = contextvars.ContextVar("variable", default="outside")
    context = contextvars.copy_context()
    context.run(variable.set, "inside")
    handle.add_done_callback(lambda ended: seen.append((1, ended, variable.get())))
    handle.add_done_callback(lambda ended: seen.append((2, ended, variable.get())), context=context)
    handle.add_done_callback(seen.append)
    assert handle.remove_done_callback(seen.append) == 1

    await handle
    handle.add_done_callback(lambda ended: seen.append((3, ended, variable.get())))
    assert len(seen) < 3
    for _ in range(3):
        await asyncio.sleep(0)

    assert seen == [(1, handle, "outside"), (2, handle, "inside"), (3, handle, "outside")]


@kinds
async def test_the_outcome_of_what_still_runs_is_an_invalid_state(
    runtime: Runtime, start: Start
) -> None:
    slow: Any = await start(forever)

    with pytest.raises(asyncio.InvalidStateError, match="await it"):
        slow.exception()
    slow.cancel()
    await asyncio.wait([slow])

    with pytest.raises((TaskCancelled, PoolTaskCancelled)):
        slow.exception()


async def test_a_handle_has_the_result_of_a_future(runtime: Runtime) -> None:
    handle, bad = spawn(two), spawn(fails)
    with pytest.raises(asyncio.InvalidStateError):
        handle.result()
    await asyncio.wait([handle, bad])  # type: ignore[type-var]

    assert (handle.result(), handle.exception()) == (2, None)
    with pytest.raises(ZeroDivisionError):
        bad.result()


async def test_asyncio_does_not_take_a_handle_for_a_future(runtime: Runtime) -> None:
    """If it did, a cancelled gather would cancel the task."""
    assert not asyncio.isfuture(await as_handle(one))
    assert not asyncio.isfuture(await as_pool_task(one))


async def test_the_body_may_read_the_error_of_a_task_it_waits_for(runtime: Runtime) -> None:
    async with scope():
        bad, slow = spawn(fails), spawn(forever)
        done, _ = await asyncio.wait([bad, slow], return_when="FIRST_COMPLETED")  # type: ignore[type-var]
        assert done == {bad}
        assert isinstance(bad.exception(), ZeroDivisionError)
        assert slow.status == "running"
        slow.cancel()


async def test_an_error_that_the_body_does_not_read_is_raised_by_its_scope(
    runtime: Runtime,
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with scope():
            bad, slow = spawn(fails), spawn(forever)
            await asyncio.wait([bad, slow], return_when="FIRST_COMPLETED")  # type: ignore[type-var]

    assert slow.cancelled()


async def test_an_error_after_the_wait_ended_goes_to_the_scope_as_ever(runtime: Runtime) -> None:
    go = asyncio.Event()

    async def fails_later() -> None:
        await go.wait()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with scope():
            later = spawn(fails_later)
            await asyncio.wait([later, spawn(one)], return_when="FIRST_COMPLETED")  # type: ignore[type-var]
            go.set()
            await asyncio.Event().wait()


async def test_a_detached_failure_that_is_only_watched_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Runtime():
        bad = spawn(fails)
        await asyncio.wait([bad])  # type: ignore[type-var]
        read = spawn(fails)
        await asyncio.wait([read])  # type: ignore[type-var]
        read.exception()

    logged = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(logged) == 1 and bad.task_id in logged[0].getMessage()


async def test_a_graceful_stop_reaches_a_task_that_gathers_handles(runtime: Runtime) -> None:
    slow = [spawn(forever), spawn(forever)]

    async def gathers() -> None:
        await asyncio.gather(*slow)

    parent = spawn(gathers)
    for _ in range(5):
        await asyncio.sleep(0)
    outcome = await harn.cancel_graceful(parent, timeout="30s")

    assert isinstance(harn.unwrap_err(outcome), TaskCancelled)
    assert [each.status for each in slow] == ["running", "running"]


def test_another_loop_is_told() -> None:
    with run_in_thread():
        handle: Any = harn.from_thread(spawn, one)

        async def elsewhere() -> None:
            await asyncio.wait([handle])

        with pytest.raises(HarnError, match="another event loop"):
            asyncio.run(elsewhere())
