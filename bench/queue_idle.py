"""Idle pick-up: from the call that enqueues one job to its handler, the worker being idle.

Median of five jobs in each play (DBOS: three, and fewer rounds), enqueued at random moments by
another process, each on disk before the worker may see it; then the processor time that the
worker's process takes while it waits, in percent of one core. Those that can be woken are: harn
on SQLite by its own hint between processes, on PostgreSQL by NOTIFY, as PgQueuer, procrastinate,
SAQ and the bare loop. The bare loop on SQLite asks for `data_version` every millisecond. huey and
DBOS poll as they do by default; litequeue and persist-queue know no worker and look every 50 ms.
See `queue_sqlite.py` and `queue_postgres.py` for what each promises.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

from bench import queue_postgres, queue_sqlite
from bench.harness import Contest, Contestant, Goal, budget
from bench.peers import Hear

SUBJECT = "idle pick-up"

SQLITE, POSTGRES = "idle pick-up, SQLite", "idle pick-up, PostgreSQL"
SQLITE_CPU = "processor of an idle worker, SQLite"
POSTGRES_CPU = "processor of an idle worker, PostgreSQL"

SQLITE_US, POSTGRES_US = 2500.0, 3300.0
IDLE_PERCENT = 2.0


class Idle:
    """What was heard of each contestant while it idled, in the order of the plays."""

    def __init__(self) -> None:
        self.heard: defaultdict[str, deque[float]] = defaultdict(deque)

    def hear(self, name: str) -> Hear:
        return lambda told: self.heard[name].append(told["percent"])

    def of(self, contestant: Contestant) -> Contestant:
        """Return who tells it, without playing again; the last one stays."""

        def tell() -> float:
            heard = self.heard[contestant.name]
            return heard.popleft() if len(heard) > 1 else heard[0]

        return replace(contestant, run=tell)


def contests() -> Iterable[Contest]:
    """Compare waking up on both, and what waiting costs."""
    idle = Idle()
    players = queue_sqlite.contestants("idle", idle=idle.hear)
    yield Contest(SQLITE, (budget(SQLITE_US), *players), "µs", warm_up=False)
    yield Contest(SQLITE_CPU, (budget(IDLE_PERCENT), *map(idle.of, players)), "%", warm_up=False)
    idle = Idle()
    players = queue_postgres.contestants("idle", idle=idle.hear)
    yield Contest(POSTGRES, (budget(POSTGRES_US), *players), "µs", warm_up=False)
    yield Contest(POSTGRES_CPU, (budget(IDLE_PERCENT), *map(idle.of, players)), "%", warm_up=False)


WHY = "the choice between keys is a round trip of its own, between two in one transaction"
GOALS = [
    Goal(
        "picked up within 2.5 ms (SQLite)",
        SQLITE,
        "harn",
        "the budget",
        at_most=1.0,
        why="two fsynced commits, and code that is cold after a pause",
    ),
    Goal("under 2 % of a core (SQLite)", SQLITE_CPU, "harn", "the budget", at_most=1.0),
    Goal(
        "picked up within 3.3 ms (PostgreSQL)",
        POSTGRES,
        "harn",
        "the budget",
        at_most=1.0,
        why="three round trips, two fsynced commits, and code that is cold after a pause",
    ),
    Goal("under 2 % of a core (PostgreSQL)", POSTGRES_CPU, "harn", "the budget", at_most=1.0),
    *(
        Goal(f"wakes before {peer} (SQLite)", SQLITE, "harn", peer, at_most=1.0)
        for peer in queue_sqlite.PEERS
    ),
    *(
        Goal(f"wakes before {peer} (PostgreSQL)", POSTGRES, "harn", peer, at_most=1.0, why=WHY)
        for peer in queue_postgres.PEERS
    ),
]
