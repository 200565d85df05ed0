"""A queue in a SQLite file: harn, what users would pick instead, and the bare engine.

Each is played by a process of its own through the same protocol (`peer_scripts/_play.py`).

- *enqueue*: one job at a time, each on disk when the call returns.
- *claim to ack*: jobs that do nothing, their own worker; one by one, with a concurrency of ten, and
  with ten in each of four processes on one file. What a worker may have claimed before the clock
  runs does not count.
- *a job's life*: enqueued by hundreds, in one call where there is one, then claimed and acked with
  a hundred in flight; the sum of both.

Durability: all sync each commit (WAL with `synchronous=FULL`; DBOS and persist-queue leave
SQLite's own FULL, DBOS with the rollback journal). What else each keeps for that:

| contestant | killed worker | attempts, results, log | fair share |
|---|---|---|---|
| bare apsw | stays claimed forever | none | no |
| harn | lease runs out, done again | all | yes, on |
| huey | **lost: taking deletes, no ack** | result store off | no |
| litequeue | stays locked, by hand | times only | no |
| persist-queue | resumed when reopened | status | no; not for several processes |
| DBOS | recovered | all | no |

litequeue and persist-queue have no worker and know no concurrency: one plain loop each, so they
have one line for one by one and for ten. A job's life with huey has one thread: it was quicker so
than with ten or a hundred. DBOS, which takes seconds to start and is far away, has fewer jobs to do
and plays fewer rounds. Each play warms up by itself: what comes first in it is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from bench.harness import ROUNDS, Contest, Contestant, Goal
from bench.peers import DBOS, HERE, HUEY, LITEQUEUE, PERSIST_QUEUE, Hear, Peer, contestant

SUBJECT = "queue on SQLite, against peers"

ENQUEUE = "queue on SQLite: enqueue one at a time"
SINGLE = "queue on SQLite: claim to ack, one by one"
ONE = "queue on SQLite: claim to ack, ten at once"
FOUR = "queue on SQLite: claim to ack, four processes"
LIFE = "queue on SQLite: a job's life, 100 in flight"
DBOS_ROUNDS = 2
PEERS = ("huey", "litequeue", "persist-queue", "DBOS")


def contestants(
    operation: str,
    n: int = 0,
    few: int = 0,
    *,
    concurrency: int = 10,
    workers: int = 1,
    idle: Callable[[str], Hear] | None = None,
) -> tuple[Contestant, ...]:
    """Return all who can do it: *n* jobs, *few* for DBOS."""
    life = operation == "life"

    def play(peer: Peer, script: str, name: str, note: str, at_once: int) -> list[Contestant]:
        hear = idle(name) if idle else None
        what: dict[str, Any] = {"operation": operation, "workers": workers, "concurrency": at_once}
        jobs = few if peer is DBOS else n // 5 if life and peer is not HERE else n
        rounds = DBOS_ROUNDS if peer is DBOS else ROUNDS
        return contestant(
            peer, script, name=name, note=note, rounds=rounds, hear=hear, n=jobs, **what
        )

    plain = concurrency == 10 and workers == 1 and operation == "drain"
    return (
        *play(HERE, "queue_bare_sqlite", "bare apsw", "", concurrency),
        *play(HERE, "queue_harn", "harn", "lease, log, results, fair", concurrency),
        *play(HUEY, "queue_huey", "huey", "no ack", 1 if life else concurrency),
        *(() if plain else play(LITEQUEUE, "queue_litequeue", "litequeue", "no lease", 1)),
        *(
            ()
            if plain or workers > 1
            else play(PERSIST_QUEUE, "queue_persist", "persist-queue", "one process only", 1)
        ),
        *play(DBOS, "queue_dbos", "DBOS", "workflow status kept", concurrency),
    )


def contests() -> Iterable[Contest]:
    """Compare enqueue, claim to ack alone, by ten and in four processes, and whole lives."""
    yield from (
        Contest(name, players, "µs/job", warm_up=False)
        for name, players in (
            (ENQUEUE, contestants("enqueue", 100, 50)),
            (SINGLE, contestants("drain", 200, 20, concurrency=1)),
            (ONE, contestants("drain", 400, 60)),
            (FOUR, contestants("drain", 600, 200, workers=4)),
            (LIFE, contestants("life", 2000, 400, concurrency=100)),
        )
    )


ALONE = "ten pages instead of three in each commit, on a thread of its own; see queue-cost.md"
LONG = "four records, three indexes and two threads of Python a job; see queue-cost.md"
GOALS = [
    *(
        Goal(f"ahead of {peer} ({short})", contest, "harn", peer, at_most=1.0, why=ALONE)
        for contest, short, peers in (
            (ENQUEUE, "SQLite, enqueue", PEERS),
            (SINGLE, "SQLite, one by one", PEERS[1:]),
            (ONE, "SQLite, ten at once", ("huey", "DBOS")),
            (FOUR, "SQLite, four processes", ("huey", "litequeue", "DBOS")),
        )
        for peer in peers
    ),
    Goal(
        "1.2 times huey's cost (SQLite, one by one)",
        SINGLE,
        "harn",
        "huey",
        at_most=1.2,
        why="huey deletes a job when it takes it, in one commit; settling and claiming write more",
    ),
    *(
        Goal(
            f"8 times {peer}'s rate (SQLite, a job's life)",
            LIFE,
            "harn",
            peer,
            at_most=1 / 8,
            why=LONG,
        )
        for peer in PEERS
    ),
]
