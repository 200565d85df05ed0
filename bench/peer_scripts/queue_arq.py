"""arq on Redis: its own worker; results kept for an hour (its default). At least once.

It polls every half second by default, which also bounds its rate; here every ten milliseconds.
"""

from _play import AT, Loop, did_async, main
from arq import Worker, create_pool
from arq.connections import RedisSettings


async def handler(ctx, value):
    await did_async(value)


def putter(at):
    loop = Loop()
    pool = loop(create_pool(RedisSettings.from_dsn(at)))
    return lambda value: loop(pool.enqueue_job("handler", value))


def work(at, concurrency):
    Loop()
    Worker(
        functions=[handler],
        redis_settings=RedisSettings.from_dsn(AT),
        max_jobs=concurrency,
        poll_delay=0.01,
        handle_signals=False,
    ).run()


main(lambda at: None, putter, work)
