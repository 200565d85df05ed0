"""litequeue: put, pop, done; `synchronous` set to FULL (it sets NORMAL itself).

It has no worker: one loop pops, calls and marks done, and looks again after 50 ms when empty.
Locked messages of a killed process stay locked until they are retried by hand.
"""

import time

from _play import did, main
from litequeue import LiteQueue


def connect(at):
    queue = LiteQueue(at, timeout=30)
    queue.conn.execute("PRAGMA synchronous = FULL")
    return queue


def putter(at):
    queue = connect(at)
    return lambda value: queue.put(str(value))


def filler(at):
    queue = connect(at)

    def fill(values):
        with queue.transaction():
            for value in values:
                queue.put(str(value))

    return fill


def work(at, concurrency):
    queue = connect(at)
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(0.05)
            continue
        did(message.data)
        queue.done(message.message_id)


main(connect, putter, work, filler)
