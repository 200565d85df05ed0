"""The floor of an enqueue on PostgreSQL: asyncpg and one table, no worker.

One at a time each insert is a commit; by hundreds it is `executemany`, which sends a hundred rows
in one round trip and one transaction.
"""

import asyncpg
from _play import Loop, main

PUT = "INSERT INTO j (body) VALUES ($1)"


def opened(at):
    loop = Loop()
    return loop, loop(asyncpg.connect(at))


def make(at):
    loop, db = opened(at)
    loop(db.execute("CREATE TABLE j (id bigserial PRIMARY KEY, state int DEFAULT 0, body bigint)"))
    loop(db.execute("CREATE INDEX ON j (id) WHERE state = 0"))


def putter(at):
    loop, db = opened(at)
    return lambda value: loop(db.execute(PUT, value))


def filler(at):
    loop, db = opened(at)
    return lambda values: loop(db.executemany(PUT, [(value,) for value in values]))


def work(at, concurrency):
    raise NotImplementedError


main(make, putter, work, filler)
