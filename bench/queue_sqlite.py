"""A queue in a SQLite file: harn, what users would pick instead, and the bare engine.

Everybody is played by a process of its own through the same protocol (`peer_scripts/_play.py`).

- *enqueue*: one job at a time, each on disk when the call returns.
- *claim to ack*: jobs that do nothing, a worker with a concurrency of ten; in one process, and in
  four on one file. From the moment that all workers are running to the end of the last handler.

Durability: everybody syncs each commit (WAL with `synchronous=FULL`; DBOS and persist-queue leave
SQLite's own FULL, DBOS with the rollback journal). What else each keeps for that:

| contestant | killed worker | attempts, results, log | fair share |
|---|---|---|---|
| bare apsw | stays claimed for ever | none | no |
| harn | lease runs out, done again | all | yes, on |
| huey | **lost: taking deletes, no ack** | result store off | no |
| litequeue | stays locked, by hand | times only | no |
| persist-queue | resumed when reopened | status | no; not for several processes |
| DBOS | recovered | all | no |

litequeue and persist-queue have no worker: one plain loop each. DBOS has fewer jobs to
do (60 and 150). What a worker holds when the gate opens, at most ten of 400 or forty of 600, it has
claimed before the clock runs; with DBOS's few jobs that helps it by up to a quarter.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.harness import Contest, Contestant, Goal
from bench.peers import DBOS, HERE, HUEY, LITEQUEUE, PERSIST_QUEUE, contestant

SUBJECT = "queue on SQLite, against peers"

ENQUEUE = "queue on SQLite: enqueue one at a time"
ONE = "queue on SQLite: claim to ack, one process"
FOUR = "queue on SQLite: claim to ack, four processes"
PEERS = ("huey", "litequeue", "persist-queue", "DBOS")


def everybody(
    operation: str, n: int = 0, workers: int = 1, slow: int = 0
) -> tuple[Contestant, ...]:
    what = {"operation": operation, "n": n, "workers": workers}
    few = {**what, "n": slow or n}
    return (
        *contestant(HERE, "queue_bare_sqlite", name="bare apsw", **what),
        *contestant(HERE, "queue_harn", name="harn", note="lease, log, results, fair", **what),
        *contestant(HUEY, "queue_huey", note="no ack", **what),
        *contestant(LITEQUEUE, "queue_litequeue", note="no lease", **what),
        *(
            contestant(PERSIST_QUEUE, "queue_persist", note="one process only", **what)
            if workers == 1
            else ()
        ),
        *contestant(DBOS, "queue_dbos", note="workflow status kept", **few),
    )


def contests() -> Iterable[Contest]:
    """Compare enqueue, claim to ack in one process and in four."""
    yield Contest(ENQUEUE, everybody("enqueue", 100), "µs/job")
    yield Contest(ONE, everybody("drain", 400, slow=60), "µs/job")
    yield Contest(FOUR, everybody("drain", 600, workers=4, slow=150), "µs/job")


GOALS = [
    Goal(f"ahead of {peer} ({short})", contest, "harn", peer, at_most=1.0)
    for contest, short in (
        (ENQUEUE, "SQLite, enqueue"),
        (ONE, "SQLite, one process"),
        (FOUR, "SQLite, four processes"),
    )
    for peer in PEERS
    if (contest, peer) != (FOUR, "persist-queue")
]
