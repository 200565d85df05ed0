"""harn, on SQLite (`at` is a path) or PostgreSQL (`at` is a DSN).

Fair share on, ten tenants, log and responses kept; fsync. Enqueue many is `enqueue_many`.
"""

from _play import Loop, did_async, main

from harn import NewJob, Runtime, SchedulerPolicy, drain, worker_queue

FAIR = SchedulerPolicy(strategy="drr")


def url(at):
    return at if "://" in at else f"sqlite:///{at}"


def make(at):
    async def create():
        async with Runtime(storage=url(at)):
            await worker_queue("other").enqueue(0)

    Loop()(create())


def opened(at):
    loop = Loop()

    async def enter():
        await Runtime(storage=url(at)).__aenter__()
        return worker_queue("q", FAIR)

    return loop, loop(enter())


def putter(at):
    loop, queue = opened(at)
    return lambda value: loop(queue.enqueue(value, tenant_id=f"t{value % 10}"))


def filler(at):
    loop, queue = opened(at)
    return lambda values: loop(
        queue.enqueue_many([NewJob(value, tenant_id=f"t{value % 10}") for value in values])
    )


def work(at, concurrency):
    async def handler(job):
        await did_async(job.payload)

    async def run():
        async with Runtime(storage=url(at)):
            await drain("q", handler, concurrency=concurrency, stop_when_empty=False, policy=FAIR)

    Loop()(run())


def acked(at):
    if "://" not in at:
        return None
    import psycopg

    with psycopg.connect(at) as db:
        rows = db.execute("SELECT settled_at FROM harn.jobs WHERE state = 4")
        return [ms * 1_000_000 for (ms,) in rows]


main(make, putter, work, filler, acked)
