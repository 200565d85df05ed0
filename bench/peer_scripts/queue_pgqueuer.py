"""PgQueuer on PostgreSQL with asyncpg, its own worker: NOTIFY, log kept.

It wants room for two batches, so a batch is half of its concurrency. At least once. Its completions
are buffered: they are written up to a batch later than the handler ended, so a killed worker does
again what others have committed by then. They count when they are written. Its tables are logged
and its commits are synced, as it is by default.
"""

import asyncpg
from _play import WHAT, Loop, did_async, main
from pgqueuer import AsyncpgDriver, PgQueuer, Queries


async def connect(at):
    return AsyncpgDriver(await asyncpg.connect(at))


def make(at):
    async def create():
        await Queries(await connect(at)).install()

    Loop()(create())


def opened(at):
    loop = Loop()
    return loop, Queries(loop(connect(at)))


def putter(at):
    loop, queries = opened(at)
    return lambda value: loop(queries.enqueue("handler", str(value).encode()))


def filler(at):
    loop, queries = opened(at)
    return lambda values: loop(
        queries.enqueue(
            ["handler"] * len(values), [str(value).encode() for value in values], [0] * len(values)
        )
    )


def work(at, concurrency):
    async def run():
        pgq = PgQueuer(await connect(at))

        @pgq.entrypoint("handler")
        async def handler(job):
            await did_async(job.payload.decode())

        most = WHAT.get("most", concurrency)
        await pgq.run(batch_size=max(1, most // 2), max_concurrent_tasks=max(2, most))

    Loop()(run())


def acked(at):
    async def read():
        db = await asyncpg.connect(at)
        try:
            told = "SELECT created FROM pgqueuer_log WHERE status = 'successful'"
            return [int(row[0].timestamp() * 1e9) for row in await db.fetch(told)]
        finally:
            await db.close()

    return Loop()(read())


main(make, putter, work, filler, acked)
