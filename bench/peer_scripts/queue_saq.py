"""SAQ on PostgreSQL, its own worker: NOTIFY, results kept for ten minutes (its default)."""

import asyncio

from _play import Loop, did_async, main
from saq import Queue, Worker


async def handler(ctx, *, value):
    await did_async(value)


def make(at):
    async def create():
        queue = Queue.from_url(at, name="q")
        await queue.connect()
        await queue.disconnect()

    Loop()(create())


def putter(at):
    loop = Loop()
    queue = Queue.from_url(at, name="q")
    loop(queue.connect())
    return lambda value: loop(queue.enqueue("handler", value=value))


def filler(at):
    """It has no call for many: a hundred calls at once."""
    loop = Loop()
    queue = Queue.from_url(at, name="q")
    loop(queue.connect())

    async def fill(values):
        await asyncio.gather(*(queue.enqueue("handler", value=value) for value in values))

    return lambda values: loop(fill(values))


def work(at, concurrency):
    async def run():
        queue = Queue.from_url(at, name="q")
        await queue.connect()
        worker = Worker(queue, functions=[("handler", handler)], concurrency=concurrency)
        await worker.start()

    Loop()(run())


main(make, putter, work, filler)
