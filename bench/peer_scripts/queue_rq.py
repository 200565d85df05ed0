"""RQ on Redis: `SimpleWorker`, one job at a time, without the fork per job of its usual worker.

Results kept for 500 s (its default).
"""

import logging

import queue_rq_job
from _play import main
from redis import Redis
from rq import Queue, SimpleWorker
from rq.timeouts import TimerDeathPenalty


def putter(at):
    queue = Queue("q", connection=Redis.from_url(at))
    return lambda value: queue.enqueue(queue_rq_job.handler, value)


class Worker(SimpleWorker):
    death_penalty_class = TimerDeathPenalty


def work(at, concurrency):
    connection = Redis.from_url(at)
    logging.disable(logging.WARNING)
    Worker([Queue("q", connection=connection)], connection=connection).work()


main(lambda at: None, putter, work)
