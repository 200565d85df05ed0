"""The three faults of asyncio on Python 3.11 that we must not inherit (invariants 0.2)."""

from __future__ import annotations

import asyncio

import pytest

import harn
from harn import deadline, scope, spawn


async def turns(n: int = 3) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_a_deadline_never_swallows_a_cancel_that_meets_the_result() -> None:
    """gh-86296: `wait_for` returned the value and forgot the cancel."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def main() -> int:
        async with deadline("1h"):
            return await ready

    task = asyncio.create_task(main())
    await turns()
    ready.set_result(1)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_waiters_of_a_handle_are_all_woken_though_one_is_cancelled_as_it_wakes() -> None:
    """gh-112202: `Condition.notify` was lost with the woken task's cancel."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def child() -> int:
        return await ready

    handle = spawn(child)

    async def waits() -> int:
        return await handle

    waiters = [asyncio.create_task(waits()) for _ in range(3)]
    await turns()
    ready.set_result(7)
    while not handle.done():
        await asyncio.sleep(0)
    waiters[0].cancel()
    results = await asyncio.gather(*waiters, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [7, 7]


@pytest.mark.parametrize("order", ["cancel first", "failure first"])
async def test_a_nested_scope_never_swallows_the_cancel_of_its_parent(order: str) -> None:
    """gh-116720: an inner `TaskGroup` whose child failed ate the outer one's cancel."""
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    after_inner = False

    async def fails() -> None:
        await gate
        raise ValueError("inner")

    async def main() -> None:
        nonlocal after_inner
        async with scope():
            try:
                async with scope():
                    spawn(fails)
                    await asyncio.get_running_loop().create_future()
            except ValueError:
                pass
            after_inner = True
            await harn.sleep("1h")

    task = asyncio.create_task(main())
    await turns()
    if order == "cancel first":
        task.cancel()
        gate.set_result(None)
    else:
        gate.set_result(None)
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait((task,))

    assert task.cancelled()
    assert not after_inner
