"""The floor on PostgreSQL: a table, SKIP LOCKED, one commit to claim, one to mark done.

The worker takes as many as its concurrency says. It has no lease, no retry, no result. It waits for
NOTIFY, which the one at a time insert sends.
"""

import psycopg
from _play import did, main


def connect(at):
    return psycopg.connect(at, autocommit=True)


def make(at):
    with connect(at) as db:
        db.execute("CREATE TABLE j (id bigserial PRIMARY KEY, state int DEFAULT 0, body bigint)")
        db.execute("CREATE INDEX ON j (id) WHERE state = 0")


def putter(at):
    db = connect(at)
    sql = "WITH put AS (INSERT INTO j (body) VALUES (%s)) SELECT pg_notify('j', '')"
    return lambda value: db.execute(sql, (value,))


def filler(at):
    db = connect(at)

    def fill(values):
        with db.transaction(), db.cursor() as cursor:
            cursor.executemany("INSERT INTO j (body) VALUES (%s)", [(value,) for value in values])

    return fill


def work(at, concurrency):
    db = connect(at)
    db.execute("LISTEN j")
    while True:
        rows = db.execute(
            "UPDATE j SET state = 1 WHERE id IN (SELECT id FROM j WHERE state = 0 ORDER BY id"
            " LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING id, body",
            (concurrency,),
        ).fetchall()
        for _, body in rows:
            did(body)
        if rows:
            db.execute("UPDATE j SET state = 2 WHERE id = ANY (%s)", ([id for id, _ in rows],))
        else:
            list(db.notifies(timeout=0.5, stop_after=1))


main(make, putter, work, filler)
