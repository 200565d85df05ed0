"""procrastinate on PostgreSQL: its own worker, LISTEN/NOTIFY, jobs kept after they succeed.

At least once; a job of a killed worker waits until stalled jobs are retried by hand.
"""

import logging

from _play import AT, Loop, did_async, main
from procrastinate import App, PsycopgConnector

logging.disable(logging.WARNING)
app = App(connector=PsycopgConnector(conninfo=AT))


@app.task(name="handler", queue="q")
async def handler(value):
    await did_async(value)


def make(at):
    async def create():
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    Loop()(create())


def opened():
    loop = Loop()
    loop(app.open_async().__aenter__())
    return loop


def putter(at):
    loop = opened()
    return lambda value: loop(handler.defer_async(value=value))


def filler(at):
    loop = opened()
    return lambda values: loop(handler.batch_defer_async(*[{"value": value} for value in values]))


def work(at, concurrency):
    async def run():
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)

    Loop()(run())


main(make, putter, work, filler)
