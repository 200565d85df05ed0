"""Celery on Redis: the threads pool, `acks_late` (at least once), no result backend."""

from _play import AT, did, main
from celery import Celery

app = Celery("bench", broker=AT if "://" in AT else None)
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, broker_pool_limit=10)


@app.task(name="handler", ignore_result=True)
def handler(value):
    did(value)


def putter(at):
    return handler.delay


def work(at, concurrency):
    options = f"worker -P threads -c {concurrency} -l ERROR --without-gossip --without-mingle"
    app.worker_main(options.split())


main(lambda at: None, putter, work)
