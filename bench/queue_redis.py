"""Celery, arq and RQ on Redis beside harn on SQLite and PostgreSQL.

The same protocol as `queue_sqlite.py`. Redis runs with `appendonly yes, appendfsync always`: what a
call has answered is on disk, as it is for harn. With Redis's usual `everysec` they would be
quicker, and a power cut would take the last second. The server is a separate process of its own, as
PostgreSQL is; SQLite is not. Where no redis-server can be installed, nothing of this runs.

Celery acknowledges late (at least once; a lost job comes back after an hour), without results. arq
may look every 10 ms instead of every 500. RQ works one job at a time (`SimpleWorker`) and has 50 of
them to do. Each play warms up by itself: what comes first in it is not timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal, leave_out
from bench.peers import (
    ARQ,
    CELERY,
    HERE,
    RQ,
    PeerMissing,
    Postgres,
    Redis,
    contestant,
    redis_server,
)

SUBJECT = "queues on Redis, against harn"

ENQUEUE = "beside Redis: enqueue one at a time"
DRAIN = "beside Redis: claim to ack, one process"
PEERS = ("arq", "RQ", "Celery")


def contestants(operation: str, n: int) -> tuple[Contestant, ...]:
    what: dict[str, Any] = {"operation": operation, "n": n}
    redis: dict[str, Any] = {**what, "at": Redis.empty}
    return (
        *contestant(HERE, "queue_harn", name="harn, SQLite", **what),
        *contestant(HERE, "queue_harn", name="harn, PostgreSQL", at=Postgres.database, **what),
        *contestant(ARQ, "queue_arq", note="Redis", **redis),
        *contestant(RQ, "queue_rq", note="Redis, one at a time", **{**redis, "n": 50}),
        *contestant(CELERY, "queue_celery", note="Redis, threads", **redis),
    )


def contests() -> Iterable[Contest]:
    """Compare enqueue, and claim to ack in one process."""
    try:
        redis_server()
    except PeerMissing as missing:
        leave_out(f"redis-server could not be installed: {missing}, Celery, arq and RQ left out")
        return
    yield Contest(ENQUEUE, contestants("enqueue", 100), "µs/job", warm_up=False)
    yield Contest(DRAIN, contestants("drain", 300), "µs/job", warm_up=False)


GOALS = [
    Goal(f"ahead of {peer} ({short})", contest, "harn, SQLite", peer, at_most=1.0)
    for contest, short in ((ENQUEUE, "enqueue"), (DRAIN, "claim to ack"))
    for peer in PEERS
]
