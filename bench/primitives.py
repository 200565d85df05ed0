"""Channels and permits against asyncio's own queue and lock.

Both sides do the same work inside a runtime, on a loop of the same kind, taking turns. harn's side
counts its metrics, is watched for deadlocks and can be used from threads; asyncio's does none of
that.

- *one message*: put it in and take it out again, in one task; nothing ever waits.
- *a stream*: a producer and a consumer at capacity 256; each waits once per 256 messages.
- *hand over*: the same at capacity 1, where each message makes both sides wait.
- *uncontended*: take it and release it; no other task wants it.
- *contended*: ten tasks want it and hold it for one turn of the loop.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal
from harn import Runtime, channel, mutex, shared_cell, sync_mutex_acquire
from harn.sync import Channel

SUBJECT = "primitives: channels, permits, shared cells"
TASKS = 10

Put = Callable[[Any], Awaitable[Any]]
Get = Callable[[], Awaitable[Any]]
Section = Callable[[], Awaitable[None]]


def through_one_task(make: Callable[[], tuple[Put, Get]]) -> Callable[[int], Awaitable[None]]:
    async def operation(n: int) -> None:
        put, get = make()
        for i in range(n):
            await put(i)
            await get()

    return operation


def between_two_tasks(make: Callable[[], tuple[Put, Get]]) -> Callable[[int], Awaitable[None]]:
    async def operation(n: int) -> None:
        put, get = make()

        async def produce() -> None:
            for i in range(n):
                await put(i)

        producer = asyncio.ensure_future(produce())
        for _ in range(n):
            await get()
        await producer

    return operation


def queue(capacity: int) -> Callable[[], tuple[Put, Get]]:
    def make() -> tuple[Put, Get]:
        made: asyncio.Queue[Any] = asyncio.Queue(capacity)
        return made.put, made.get

    return make


def harn_channel(capacity: int) -> Callable[[], tuple[Put, Get]]:
    def make() -> tuple[Put, Get]:
        made: Channel[Any] = channel("bench", capacity)
        return made.send, made.receive

    return make


async def asyncio_lock(n: int) -> None:
    lock = asyncio.Lock()
    for _ in range(n):
        async with lock:
            pass


async def permit(n: int) -> None:
    for _ in range(n):
        taken = await sync_mutex_acquire("bench")
        assert taken is not None
        taken.release()


async def mutex_by_place(n: int) -> None:
    for _ in range(n):
        async with mutex():
            pass


async def mutex_by_resource(n: int) -> None:
    for _ in range(n):
        async with mutex("account-42"):
            pass


def crowd(make: Callable[[], Section]) -> Callable[[int], Awaitable[None]]:
    async def operation(n: int) -> None:
        section = make()

        async def one() -> None:
            for _ in range(n // TASKS):
                await section()

        await asyncio.gather(*(one() for _ in range(TASKS)))

    return operation


def lock_section() -> Section:
    lock = asyncio.Lock()

    async def section() -> None:
        async with lock:
            await asyncio.sleep(0)

    return section


def permit_section() -> Section:
    async def section() -> None:
        taken = await sync_mutex_acquire("bench")
        assert taken is not None
        with taken:
            await asyncio.sleep(0)

    return section


def mutex_section() -> Section:
    async def section() -> None:
        async with mutex():
            await asyncio.sleep(0)

    return section


async def swap(n: int) -> None:
    cell = shared_cell("bench", initial=0)
    for _ in range(n):
        seen = cell.snapshot()
        cell.cas(seen, seen.value + 1)


def contest(name: str, n: int, **contestants: Callable[[int], Awaitable[object]]) -> Contest:
    named = (
        Contestant(each.replace("_", " "), timed_inside_a_runtime(run, n))
        for each, run in contestants.items()
    )
    return Contest(name, tuple(named))


def timed_inside_a_runtime(
    operation: Callable[[int], Awaitable[object]], n: int
) -> Callable[[], float]:
    async def inside() -> float:
        async with Runtime():
            gc.collect()
            began = time.perf_counter()
            await operation(n)
            return (time.perf_counter() - began) / n * 1e6

    return lambda: asyncio.run(inside())


def contests() -> Iterable[Contest]:
    """Every comparison, asyncio first."""
    yield contest(
        "one message",
        100_000,
        asyncio_Queue=through_one_task(queue(256)),
        harn_channel=through_one_task(harn_channel(256)),
    )
    yield contest(
        "a stream, capacity 256",
        100_000,
        asyncio_Queue=between_two_tasks(queue(256)),
        harn_channel=between_two_tasks(harn_channel(256)),
    )
    yield contest(
        "hand over, capacity 1",
        20_000,
        asyncio_Queue=between_two_tasks(queue(1)),
        harn_channel=between_two_tasks(harn_channel(1)),
    )
    yield contest(
        "uncontended",
        100_000,
        asyncio_Lock=asyncio_lock,
        harn_permit=permit,
        harn_mutex_by_place=mutex_by_place,
        harn_mutex_by_resource=mutex_by_resource,
    )
    yield contest(
        "contended, 10 tasks",
        100_000,
        asyncio_Lock=crowd(lock_section),
        harn_permit=crowd(permit_section),
        harn_mutex=crowd(mutex_section),
    )
    yield contest("read and swap a cell", 100_000, harn_cell=swap)


GOALS = [
    Goal("a channel message", "one message", "harn channel", "asyncio Queue", at_most=1),
    Goal(
        "a streamed message", "a stream, capacity 256", "harn channel", "asyncio Queue", at_most=1
    ),
    Goal("an uncontended permit", "uncontended", "harn permit", "asyncio Lock", at_most=3),
    Goal("an uncontended mutex", "uncontended", "harn mutex by place", "asyncio Lock", at_most=3),
    Goal(
        "a contended mutex",
        "contended, 10 tasks",
        "harn mutex",
        "asyncio Lock",
        at_most=1,
        why="a graceful stop and the deadlock detector must find the waiter; see permits.md",
    ),
    Goal(
        "a contended permit",
        "contended, 10 tasks",
        "harn permit",
        "asyncio Lock",
        at_most=1,
        why="the times waited and held, the owner's cleanup, the look-up by name; see permits.md",
    ),
]
