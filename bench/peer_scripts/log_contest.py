"""Append *n* small records to a SQLite file, synced: one at a time, or a hundred under way.

See `storage_peers.py` for what each keeps.
"""

import asyncio
import json
import time

from _tell import WHAT, began, main, tell

AT = WHAT["home"] + "/log.sqlite"
PAYLOAD = {"task": "review", "pr": 1984, "text": "x" * 100}
HUNDRED = 100


def text():
    return json.dumps(PAYLOAD)


# -- the floor -------------------------------------------------------------------------------------


def bare_put():
    import apsw
    import msgspec

    db = apsw.Connection(AT)
    db.set_busy_timeout(30_000)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute(
        "CREATE TABLE IF NOT EXISTS events (topic INTEGER NOT NULL, id INTEGER NOT NULL,"
        " kind TEXT NOT NULL, payload BLOB NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (topic, id))"
    )
    sql = (
        "INSERT INTO events SELECT 1, coalesce(max(id), 0) + 1, 'k', ?, ? FROM events"
        " WHERE topic = 1"
    )
    return db, lambda: db.execute(sql, (msgspec.json.encode(PAYLOAD), time.time_ns() // 10**6))


def bare_one(n):
    _, put = bare_put()
    put()
    began()
    for _ in range(n):
        put()


def bare_many(n):
    db, put = bare_put()
    put()
    began()
    for _ in range(n // HUNDRED):
        with db:
            for _ in range(HUNDRED):
                put()


# -- harn ------------------------------------------------------------------------------------------


def harn(at_once):
    async def do(n):
        from harn import Runtime

        async with Runtime(storage=f"sqlite:///{AT}") as runtime:
            log = runtime.event_log

            async def some():
                for _ in range(n // at_once):
                    await log.emit("bench", "k", PAYLOAD)

            await log.emit("warm", "k", PAYLOAD)
            began()
            await asyncio.gather(*(some() for _ in range(at_once)))

    return do


# -- others ----------------------------------------------------------------------------------------


def huey(n):
    from huey.storage import SqliteStorage

    storage = SqliteStorage(filename=AT, fsync=True, timeout=30)
    storage.enqueue(b"warm")
    began()
    for _ in range(n):
        storage.enqueue(text().encode())


def litequeue():
    from litequeue import LiteQueue

    queue = LiteQueue(AT, timeout=30)
    queue.conn.execute("PRAGMA synchronous = FULL")
    queue.put("warm")
    return queue


def litequeue_one(n):
    queue = litequeue()
    began()
    for _ in range(n):
        queue.put(text())


def litequeue_many(n):
    queue = litequeue()
    began()
    for _ in range(n // HUNDRED):
        with queue.transaction():
            for _ in range(HUNDRED):
                queue.put(text())


def persist_one(n):
    from persistqueue import SQLiteQueue

    queue = SQLiteQueue(WHAT["home"] + "/persist", auto_commit=True)
    queue.put("warm")
    began()
    for _ in range(n):
        queue.put(PAYLOAD)


def persist_many(n):
    from persistqueue import SQLiteQueue

    queue = SQLiteQueue(WHAT["home"] + "/persist", auto_commit=False)
    queue.put("warm")
    queue.task_done()
    began()
    for _ in range(n // HUNDRED):
        for _ in range(HUNDRED):
            queue.put(PAYLOAD)
        queue.task_done()


def dbos(n):
    from dbos import DBOS

    config = {"name": "bench", "system_database_url": f"sqlite:///{AT}", "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.workflow()
    def write():
        DBOS.write_stream("k", "warm")
        start = time.perf_counter()
        for _ in range(n):
            DBOS.write_stream("k", PAYLOAD)
        return (time.perf_counter() - start) / n * 1e6

    DBOS.launch()
    tell(write())


main(
    {
        "one": {
            "bare apsw": bare_one,
            "harn": harn(1),
            "huey": huey,
            "litequeue": litequeue_one,
            "persist-queue": persist_one,
            "DBOS": dbos,
        },
        "many": {
            "bare apsw": bare_many,
            "harn": harn(HUNDRED),
            "litequeue": litequeue_many,
            "persist-queue": persist_many,
        },
    }
)
