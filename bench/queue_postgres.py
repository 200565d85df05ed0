"""A queue in PostgreSQL: harn, what users would pick instead, and bare psycopg with SKIP LOCKED.

The same protocol and the same contests as on SQLite (`queue_sqlite.py`). A server of our own with
`fsync=on` and `synchronous_commit=on`, a fresh database for each play, each contestant's own worker
with a concurrency of ten and its own driver.

| contestant | killed worker | attempts, results, log | fair share |
|---|---|---|---|
| bare psycopg | stays claimed for ever | none | no |
| harn | lease runs out, done again | all | yes, on |
| procrastinate | stalled until retried by hand | events | no |
| PgQueuer | heartbeat runs out | log | no; acks are written up to a batch later |
| SAQ | swept | result | no |
| DBOS | recovered | all | no |

PgQueuer holds up to twenty jobs (it wants twice its batch), so it may have claimed twice as many as
others before the clock runs: at most 80 of 600. DBOS looks every millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.harness import Contest, Contestant, Goal
from bench.peers import DBOS, HERE, PGQUEUER, PROCRASTINATE, SAQ, Postgres, contestant

SUBJECT = "queue on PostgreSQL, against peers"

ENQUEUE = "queue on PostgreSQL: enqueue one at a time"
MANY = "queue on PostgreSQL: enqueue by hundreds"
ONE = "queue on PostgreSQL: claim to ack, one process"
FOUR = "queue on PostgreSQL: claim to ack, four processes"
PEERS = ("PgQueuer", "procrastinate", "SAQ", "DBOS")


def everybody(operation: str, n: int = 0, workers: int = 1) -> tuple[Contestant, ...]:
    what = {"operation": operation, "n": n, "workers": workers, "at": Postgres.database}
    bulk = operation == "enqueue many"
    return (
        *contestant(HERE, "queue_bare_postgres", name="bare psycopg", **what),
        *contestant(HERE, "queue_harn", name="harn", note="lease, log, results, fair", **what),
        *contestant(PGQUEUER, "queue_pgqueuer", note="late acks", **what),
        *contestant(PROCRASTINATE, "queue_procrastinate", note="no lease", **what),
        *(contestant(SAQ, "queue_saq", **what) if not bulk else ()),
        *(contestant(DBOS, "queue_dbos", note="workflow status kept", **what) if not bulk else ()),
    )


def contests() -> Iterable[Contest]:
    """Compare enqueue, claim to ack in one process and in four."""
    yield Contest(ENQUEUE, everybody("enqueue", 100), "µs/job")
    yield Contest(MANY, everybody("enqueue many", 1000), "µs/job")
    yield Contest(ONE, everybody("drain", 400), "µs/job")
    yield Contest(FOUR, everybody("drain", 600, workers=4), "µs/job")


GOALS = [
    *(
        Goal(f"ahead of {peer} ({short})", contest, "harn", peer, at_most=1.0)
        for contest, short in (
            (ENQUEUE, "PostgreSQL, enqueue"),
            (ONE, "PostgreSQL, one process"),
            (FOUR, "PostgreSQL, four processes"),
        )
        for peer in PEERS
    ),
    Goal("1.5 times PgQueuer's rate (PostgreSQL)", ONE, "harn", "PgQueuer", at_most=1 / 1.5),
]
