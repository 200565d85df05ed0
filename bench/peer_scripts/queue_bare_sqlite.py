"""The floor: a table, an index on what is ready, one commit for each step. WAL, FULL.

The worker takes as many as its concurrency says, calls the handler, and marks them done together:
what a loop written for the one purpose would do. It has no lease, no retry, no result. When there
is nothing it asks once a millisecond whether another process has committed (`data_version`).
"""

import time

import apsw
from _play import did, main


def connect(at):
    db = apsw.Connection(at)
    db.set_busy_timeout(30_000)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    return db


def make(at):
    connect(at).execute(
        "CREATE TABLE j (id INTEGER PRIMARY KEY, state INT NOT NULL DEFAULT 0, body);"
        "CREATE INDEX ready ON j (id) WHERE state = 0"
    )


def putter(at):
    db = connect(at)
    return lambda value: db.execute("INSERT INTO j (body) VALUES (?)", (value,))


def filler(at):
    db = connect(at)

    def fill(values):
        with db:
            db.executemany("INSERT INTO j (body) VALUES (?)", [(value,) for value in values])

    return fill


def until_another_process_commits(db):
    seen = db.pragma("data_version")
    ready = db.execute("SELECT 1 FROM j WHERE state = 0").fetchone()
    while ready is None and db.pragma("data_version") == seen:
        time.sleep(0.001)


def work(at, concurrency):
    db = connect(at)
    while True:
        db.execute("BEGIN IMMEDIATE")
        rows = db.execute(
            "UPDATE j SET state = 1 WHERE id IN"
            " (SELECT id FROM j WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, body",
            (concurrency,),
        ).fetchall()
        db.execute("COMMIT")
        for _, body in rows:
            did(body)
        if rows:
            with db:
                db.executemany("UPDATE j SET state = 2 WHERE id = ?", [(id,) for id, _ in rows])
        else:
            until_another_process_commits(db)


main(make, putter, work, filler)
