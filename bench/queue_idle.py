"""Idle pick-up: from the call that enqueues one job to its handler, the worker being idle.

Median of five jobs in each play, enqueued at random moments by another process, each on disk before
the worker may see it. Whoever can be woken is woken: harn on SQLite by its own hint between
processes, on PostgreSQL by NOTIFY, as PgQueuer, procrastinate, SAQ and the bare loop. huey and DBOS
poll as they do by default; litequeue, persist-queue and the bare loop on SQLite know no worker and
look every 50 ms. See `queue_sqlite.py` and `queue_postgres.py` for what each promises.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench import queue_postgres, queue_sqlite
from bench.harness import Contest, Goal

SUBJECT = "idle pick-up"

SQLITE = "idle pick-up, SQLite"
POSTGRES = "idle pick-up, PostgreSQL"


def contests() -> Iterable[Contest]:
    """Compare waking up on both."""
    yield Contest(SQLITE, queue_sqlite.everybody("latency"), "µs")
    yield Contest(POSTGRES, queue_postgres.everybody("latency"), "µs")


GOALS = [
    *(
        Goal(f"wakes before {peer} (SQLite)", SQLITE, "harn", peer, at_most=1.0)
        for peer in queue_sqlite.PEERS
    ),
    *(
        Goal(f"wakes before {peer} (PostgreSQL)", POSTGRES, "harn", peer, at_most=1.0)
        for peer in queue_postgres.PEERS
    ),
]
