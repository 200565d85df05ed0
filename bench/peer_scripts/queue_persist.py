"""persist-queue's SQLiteAckQueue: put, get, ack, a commit each, SQLite's default FULL.

It has no worker: one loop does it, and looks again after 50 ms when empty. Its place in the queue
is kept in the object, so it is not made for several processes, and takes no part there.
"""

import os
import time

from _play import did, main
from persistqueue import SQLiteAckQueue
from persistqueue.exceptions import Empty


def connect(at):
    os.makedirs(at, exist_ok=True)
    return SQLiteAckQueue(at, auto_commit=True)


def putter(at):
    return connect(at).put


def work(at, concurrency):
    queue = connect(at)
    while True:
        try:
            item = queue.get(block=False)
        except Empty:
            time.sleep(0.05)
            continue
        did(item)
        queue.ack(item)


main(connect, putter, work)
