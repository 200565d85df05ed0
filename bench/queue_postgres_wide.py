"""Claim to ack on PostgreSQL with many jobs in flight: ten and a hundred at once.

The same contestants and the same terms as in `queue_postgres.py`. PgQueuer, whose batch is half of
its concurrency, also has a line with twice the concurrency that the others have. Jobs do nothing,
so this is the price of being claimed, run and acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal
from bench.peers import PGQUEUER, Postgres, contestant
from bench.queue_postgres import contestants

SUBJECT = "queue on PostgreSQL, many in flight, against peers"

TEN = "queue on PostgreSQL: claim to ack, ten at once"
HUNDRED = "queue on PostgreSQL: claim to ack, a hundred at once"


def twice_the_cap(n: int, concurrency: int) -> list[Contestant]:
    what: dict[str, Any] = {
        "operation": "drain",
        "n": n,
        "concurrency": concurrency,
        "most": 2 * concurrency,
    }
    name = "PgQueuer, twice the cap"
    return contestant(PGQUEUER, "queue_pgqueuer", name=name, at=Postgres.database, **what)


def contests() -> Iterable[Contest]:
    """Compare claim to ack at two widths."""
    yield from (
        Contest(name, players, "µs/job", warm_up=False)
        for name, players in (
            (TEN, (*contestants("drain", 600, 200), *twice_the_cap(600, 10))),
            (
                HUNDRED,
                (*contestants("drain", 2000, 600, concurrency=100), *twice_the_cap(2000, 100)),
            ),
        )
    )


WHY = "a third of PgQueuer's time is what our log, shares and lists cost the server alone"

GOALS = [
    Goal(
        f"{times:g} times {peer}'s rate ({short})",
        contest,
        "harn",
        peer,
        at_most=1 / times,
        why=WHY if peer == "PgQueuer" else "a hundredth beyond, less than the rounds differ",
    )
    for contest, short in (
        (TEN, "PostgreSQL, ten at once"),
        (HUNDRED, "PostgreSQL, a hundred at once"),
    )
    for peer, times in (("PgQueuer", 2), ("procrastinate", 5), ("SAQ", 5), ("DBOS", 5))
]
