"""parallel_each_stream: completion order, backpressure, and an end whatever happens."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import harn
from harn import Runtime, parallel_each_stream, scope, spawn


class Boom(Exception):
    pass


async def turns(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def after(n: int) -> int:
    await turns(n)
    return n


class Work:
    """Items that never end by themselves, and who has tidied up."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.tidied: list[int] = []

    async def __call__(self, n: int) -> int:
        self.begun.append(n)
        try:
            if n:
                await asyncio.get_running_loop().create_future()
            return n
        finally:
            await turns(2)
            self.tidied.append(n)


async def test_values_come_in_order_of_completion(runtime: Runtime) -> None:
    assert [n async for n in parallel_each_stream([30, 5, 10], after)] == [5, 10, 30]
    assert [n async for n in parallel_each_stream([30, 5, 10], after, 2)] == [5, 10, 30]
    assert [n async for n in parallel_each_stream([3, 1], after, 1)] == [3, 1]
    assert [n async for n in parallel_each_stream([], after)] == []


async def test_an_async_source_is_read_as_there_is_room(runtime: Runtime) -> None:
    async def source() -> AsyncIterator[int]:
        for n in (9, 1):
            yield n

    assert [n async for n in parallel_each_stream(source(), after)] == [1, 9]
    assert [n async for n in parallel_each_stream(source(), after, 1)] == [9, 1]


@pytest.mark.parametrize("cap", [0, 1, 3])
async def test_N6_an_endless_source_is_pulled_no_faster_than_values_are_taken(
    runtime: Runtime, cap: int
) -> None:
    pulled = 0

    def endless() -> Iterator[int]:
        nonlocal pulled
        while True:
            pulled += 1
            yield 1

    async with parallel_each_stream(endless(), after, cap) as stream:
        for taken in range(1, 30):
            await anext(stream)
            await turns(50)
            assert pulled <= taken + (2 * cap + 1 if cap else 12)


async def test_a_failure_is_raised_at_the_next_pull_after_the_rest_has_ended(
    runtime: Runtime,
) -> None:
    tidied = []

    async def work(n: int) -> int:
        try:
            await turns(n)
            if n == 5:
                raise Boom("five")
            return n
        finally:
            await turns(1)
            tidied.append(n)

    stream = parallel_each_stream([2, 5, 500], work)
    seen = []
    with pytest.raises(Boom, match="five"):
        async for n in stream:
            seen.append(n)

    assert seen == [2]
    assert tidied == [2, 5, 500]
    assert [n async for n in stream] == []


async def test_a_failure_ends_the_rest_although_no_value_is_asked_for(runtime: Runtime) -> None:
    work = Work()

    async def item(n: int) -> int:
        if n == 5:
            await turns(3)
            raise Boom
        return await work(n)

    stream = parallel_each_stream([0, 1, 5], item, 3)
    await anext(stream)
    await turns(20)
    assert sorted(work.tidied) == [0, 1]

    with pytest.raises(Boom):
        await anext(stream)


@pytest.mark.parametrize("cap", [0, 3])
async def test_N6_leaving_the_with_block_cancels_and_awaits_the_rest(
    runtime: Runtime, cap: int
) -> None:
    work = Work()
    async with parallel_each_stream([0, 1, 2], work, cap) as stream:
        assert await anext(stream) == 0

    assert sorted(work.tidied) == sorted(work.begun) == [0, 1, 2]


async def test_N6_aclose_cancels_and_awaits_the_rest_and_may_be_repeated(
    runtime: Runtime,
) -> None:
    work = Work()
    stream = parallel_each_stream([0, 1, 2], work, 3)
    async for _ in stream:
        break
    await stream.aclose()
    assert sorted(work.tidied) == [0, 1, 2]

    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_N6_a_stream_that_is_thrown_away_ends_its_work(runtime: Runtime) -> None:
    work = Work()
    async for _ in parallel_each_stream([0, 1, 2], work, 3):
        break
    gc.collect()
    await turns(20)

    assert sorted(work.tidied) == [0, 1, 2]
    assert not runtime.frame.cleanups


async def test_N6_a_stream_ends_with_the_scope_or_task_it_was_made_in(runtime: Runtime) -> None:
    work = Work()
    kept = []
    async with scope():
        kept.append(parallel_each_stream([0, 1], work, 3))
        await anext(kept[0])
    assert sorted(work.tidied) == [0, 1]

    async def task() -> None:
        kept.append(parallel_each_stream([0, 1], work, 3))
        await anext(kept[1])

    await spawn(task)
    assert sorted(work.tidied) == [0, 0, 1, 1]


async def test_N6_a_stream_at_the_top_ends_with_the_runtime() -> None:
    work = Work()
    async with Runtime():
        stream = parallel_each_stream([0, 1], work, 3)
        await anext(stream)

    assert sorted(work.tidied) == [0, 1]


async def test_cancelling_a_wait_for_the_next_value_loses_none(runtime: Runtime) -> None:
    stream = parallel_each_stream([10, 20], after, 2)
    waiting = asyncio.create_task(anext(stream))
    await turns(2)
    waiting.cancel()
    await asyncio.wait((waiting,))

    assert [n async for n in stream] == [10, 20]


async def test_a_stream_that_is_not_read_never_begins(runtime: Runtime) -> None:
    work = Work()
    stream = parallel_each_stream([0, 1], work)
    await turns()
    assert work.begun == []

    await stream.aclose()
    assert [n async for n in stream] == []


async def test_one_reader_at_a_time(runtime: Runtime) -> None:
    stream = parallel_each_stream([100], after)

    async def read() -> Any:
        return await anext(stream)

    first = asyncio.create_task(read())
    await turns(2)
    with pytest.raises(harn.HarnError, match="one reader at a time"):
        await read()
    assert await first == 100
