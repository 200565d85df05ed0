"""Channels, permits and select; *n* messages or sections in all."""

import asyncio

from _tell import began, main

CAPACITY = 256


def asyncio_queue():
    queue = asyncio.Queue(CAPACITY)
    return queue.put, queue.get


def anyio_stream():
    from anyio import create_memory_object_stream

    send, receive = create_memory_object_stream(CAPACITY)
    return send.send, receive.receive


def aiologic_queue():
    from aiologic import Queue

    queue = Queue(CAPACITY)
    return queue.async_put, queue.async_get


def harn_channel():
    from harn import channel

    made = channel("bench", CAPACITY)
    return made.send, made.receive


def passing(make, pairs):
    async def do(n):
        put, get = make()
        each = n // pairs

        async def produce():
            for number in range(each):
                await put(number)

        async def consume():
            for _ in range(each):
                await get()

        began()
        await asyncio.gather(*(produce() for _ in range(pairs)), *(consume() for _ in range(pairs)))

    return do


def asyncio_lock():
    return asyncio.Lock()


def anyio_lock():
    from anyio import Lock

    return Lock()


def anyio_fast_lock():
    from anyio import Lock

    return Lock(fast_acquire=True)


def aiologic_lock():
    from aiologic import Lock

    return Lock()


def locking(make, tasks):
    async def do(n):
        lock = make()

        async def some():
            for _ in range(n // tasks):
                async with lock:
                    if tasks > 1:
                        await asyncio.sleep(0)

        began()
        await asyncio.gather(*(some() for _ in range(tasks)))

    return do


def locking_harn(tasks):
    async def do(n):
        from harn import mutex

        async def some():
            for _ in range(n // tasks):
                async with mutex("bench"):
                    if tasks > 1:
                        await asyncio.sleep(0)

        began()
        await asyncio.gather(*(some() for _ in range(tasks)))

    return do


def asyncio_semaphore():
    return asyncio.Semaphore(4)


def anyio_semaphore():
    from anyio import Semaphore

    return Semaphore(4)


def aiologic_semaphore():
    from aiologic import Semaphore

    return Semaphore(4)


async def semaphore_harn(n):
    from harn import sync_semaphore_acquire

    async def some():
        for _ in range(n // 10):
            with await sync_semaphore_acquire("bench", 4):
                await asyncio.sleep(0)

    began()
    await asyncio.gather(*(some() for _ in range(10)))


# -- select: two sources, a value in either -------------------------------------------------------


async def feed(puts, n):
    for number in range(n):
        await puts[number % 2](number)
        await asyncio.sleep(0)


async def select_asyncio(n):
    """Keep a get under way on each queue, and take whichever is done."""
    queues = asyncio.Queue(CAPACITY), asyncio.Queue(CAPACITY)
    began()
    feeding = asyncio.ensure_future(feed([queue.put for queue in queues], n))
    waiting = {asyncio.ensure_future(queue.get()): queue for queue in queues}
    seen = 0
    while seen < n:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            queue = waiting.pop(task)
            seen += 1
            waiting[asyncio.ensure_future(queue.get())] = queue
    for task in waiting:
        task.cancel()
    await feeding


async def select_anyio(n):
    """One reader for each source that passes on to a third stream: it has no select."""
    from anyio import create_memory_object_stream, create_task_group

    pairs = [create_memory_object_stream(CAPACITY) for _ in range(2)]
    into, out = create_memory_object_stream(0)

    async def pass_on(source):
        async for value in source:
            await into.send(value)

    began()
    async with create_task_group() as group:
        for _, receive in pairs:
            group.start_soon(pass_on, receive)
        group.start_soon(feed, [send.send for send, _ in pairs], n)
        for _ in range(n):
            await out.receive()
        group.cancel_scope.cancel()


async def select_aiologic(n):
    """The same with its queues."""
    from aiologic import Queue

    sources = [Queue(CAPACITY) for _ in range(2)]
    out = Queue(1)

    async def pass_on(source):
        while True:
            await out.async_put(await source.async_get())

    began()
    async with asyncio.TaskGroup() as group:
        passing = [group.create_task(pass_on(source)) for source in sources]
        group.create_task(feed([source.async_put for source in sources], n))
        for _ in range(n):
            await out.async_get()
        for task in passing:
            task.cancel()


async def select_harn(n):
    from harn import channel, channel_select

    channels = [channel("a", CAPACITY), channel("b", CAPACITY)]
    began()
    feeding = asyncio.ensure_future(feed([each.send for each in channels], n))
    for _ in range(n):
        assert await channel_select(channels) is not None
    await feeding


def in_a_runtime(do):
    async def inside(n):
        from harn import Runtime

        async with Runtime():
            await do(n)

    return inside


CHANNELS = {
    "asyncio.Queue": asyncio_queue,
    "anyio": anyio_stream,
    "aiologic": aiologic_queue,
}
LOCKS = {
    "asyncio.Lock": asyncio_lock,
    "anyio": anyio_lock,
    "anyio, fast_acquire": anyio_fast_lock,
    "aiologic": aiologic_lock,
}
SEMAPHORES = {
    "asyncio.Semaphore": asyncio_semaphore,
    "anyio": anyio_semaphore,
    "aiologic": aiologic_semaphore,
}

main(
    {
        **{
            f"{pairs}:{pairs}": {
                **{name: passing(make, pairs) for name, make in CHANNELS.items()},
                "harn": in_a_runtime(passing(harn_channel, pairs)),
            }
            for pairs in (1, 4)
        },
        **{
            f"lock, {tasks}": {
                **{name: locking(make, tasks) for name, make in LOCKS.items()},
                "harn": in_a_runtime(locking_harn(tasks)),
            }
            for tasks in (1, 10)
        },
        "semaphore": {
            **{name: locking(make, 10) for name, make in SEMAPHORES.items()},
            "harn": in_a_runtime(semaphore_harn),
        },
        "select": {
            "asyncio": select_asyncio,
            "anyio": select_anyio,
            "aiologic": select_aiologic,
            "harn": in_a_runtime(select_harn),
        },
    }
)
