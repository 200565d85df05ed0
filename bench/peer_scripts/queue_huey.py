"""huey on SQLite: WAL, `fsync=True`, its own consumer with threads.

huey has no ack: taking a job deletes it, so a killed worker loses what it holds. That is one
commit less than all others pay.
"""

from _play import WHAT, did, main
from huey import SqliteHuey

huey = SqliteHuey(
    filename=WHAT.get("at") or WHAT["home"] + "/queue.sqlite", fsync=True, results=False, timeout=30
)


@huey.task()
def handler(value):
    did(value)


def make(at):
    huey.storage.queue_size()


def work(at, concurrency):
    from huey.consumer import Consumer

    Consumer._set_signal_handlers = lambda self: None
    huey.create_consumer(workers=concurrency, periodic=False).run()


main(make, lambda at: handler, work)
