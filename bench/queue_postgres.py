"""A queue in PostgreSQL: harn, what users would pick instead, and bare psycopg with SKIP LOCKED.

The same protocol as on SQLite (`queue_sqlite.py`). A server of our own with `fsync=on` and
`synchronous_commit=on`, a fresh database for each play, each contestant's own worker and its own
driver. Here: enqueue, and claim to ack one by one and with ten at once in each of four processes;
`queue_postgres_wide.py` has ten and a hundred at once in one.

| contestant | killed worker | attempts, results, log | fair share |
|---|---|---|---|
| bare psycopg | stays claimed forever | none | no |
| harn | lease runs out, done again | all | yes, on |
| procrastinate | stalled until retried by hand | events | no |
| PgQueuer | heartbeat runs out | log | no; acks are written up to a batch later, and count then |
| SAQ | swept | result | no |
| DBOS | recovered | all | no |

PgQueuer wants room for two batches: its batch is half of its concurrency. DBOS looks every
millisecond; it takes seconds to start and plays fewer rounds. Each play warms up by itself: what
comes first in it is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.harness import ROUNDS, Contest, Contestant, Goal
from bench.peers import DBOS, HERE, PGQUEUER, PROCRASTINATE, SAQ, Hear, Peer, Postgres, contestant

SUBJECT = "queue on PostgreSQL, against peers"

ENQUEUE = "queue on PostgreSQL: enqueue one at a time"
MANY = "queue on PostgreSQL: enqueue by hundreds"
SINGLE = "queue on PostgreSQL: claim to ack, one by one"
FOUR = "queue on PostgreSQL: claim to ack, four processes"
DBOS_ROUNDS = 3
PEERS = ("PgQueuer", "procrastinate", "SAQ", "DBOS")
SLOW = {SAQ, DBOS, PROCRASTINATE}


def contestants(
    operation: str,
    n: int = 0,
    few: int = 0,
    *,
    concurrency: int = 10,
    workers: int = 1,
    idle: Callable[[str], Hear] | None = None,
) -> tuple[Contestant, ...]:
    """Return all who can do it: *n* jobs, *few* for those who are slow."""

    def play(peer: Peer, script: str, name: str, note: str = "", **more: int) -> list[Contestant]:
        what: dict[str, Any] = {
            "operation": operation,
            "workers": workers,
            "concurrency": concurrency,
            **more,
        }
        what |= {"at": Postgres.database, "n": few if peer in SLOW else n}
        hear = idle(name) if idle else None
        rounds = ROUNDS if peer is not DBOS else DBOS_ROUNDS - 1 if idle else DBOS_ROUNDS
        return contestant(peer, script, name=name, note=note, rounds=rounds, hear=hear, **what)

    bulk = operation == "enqueue many"
    puts = operation.startswith("enqueue")
    return (
        *play(HERE, "queue_bare_postgres", "bare psycopg"),
        *(play(PGQUEUER, "queue_bare_asyncpg", "bare asyncpg") if puts else ()),
        *play(HERE, "queue_harn", "harn", "lease, log, results, fair"),
        *play(PGQUEUER, "queue_pgqueuer", "PgQueuer", "late acks"),
        *play(PROCRASTINATE, "queue_procrastinate", "procrastinate", "no lease"),
        *(play(SAQ, "queue_saq", "SAQ") if not bulk else ()),
        *(play(DBOS, "queue_dbos", "DBOS", "workflow status kept") if not bulk else ()),
    )


def contests() -> Iterable[Contest]:
    """Compare enqueue, and claim to ack one by one and in four processes."""
    yield from (
        Contest(name, players, "µs/job", warm_up=False)
        for name, players in (
            (ENQUEUE, contestants("enqueue", 100, 100)),
            (MANY, contestants("enqueue many", 1000, 1000)),
            (SINGLE, contestants("drain", 150, 50, concurrency=1)),
            (FOUR, contestants("drain", 800, 300, workers=4)),
        )
    )


WHY = {
    (ENQUEUE, "PgQueuer"): "nine statements of a function instead of one, sent by another thread",
    (SINGLE, "PgQueuer"): "the look, the choice and the writing are two round trips",
    (FOUR, "PgQueuer"): "processes take turns at the queue's row, so that they share one rotation",
}

GOALS = [
    *(
        Goal(
            f"ahead of {peer} ({short})",
            contest,
            "harn",
            peer,
            at_most=1.0,
            why=WHY.get((contest, peer), ""),
        )
        for contest, short in (
            (ENQUEUE, "PostgreSQL, enqueue"),
            (SINGLE, "PostgreSQL, one by one"),
            (FOUR, "PostgreSQL, four processes"),
        )
        for peer in PEERS
    ),
    Goal(
        "ahead of PgQueuer (PostgreSQL, enqueue by hundreds)",
        MANY,
        "harn",
        "PgQueuer",
        at_most=1.0,
        why="a job is a record, a row with three indexes, and a part of its key's share",
    ),
    Goal(
        "1.3 times bare asyncpg (PostgreSQL, by hundreds)",
        MANY,
        "harn",
        "bare asyncpg",
        at_most=1.3,
        why="a job is a record, a row with three indexes, and a part of its key's share",
    ),
]
