"""The event log on SQLite beside the nearest thing that others have: their put. All of them sync.

Append a small record: *one at a time*, each on disk when the call returns; *a hundred under way*;
and one at a time in each of *four processes* on one file. No peer here keeps a log: a queue's
put is the same work, a row with a number of its own and a payload, and it is deleted or marked
later. DBOS has streams of values, written by a workflow.

| contestant | the record | a hundred under way | read again later |
|---|---|---|---|
| bare apsw (floor) | JSON, kind, time, a unique number | one transaction | by a query |
| harn | the same, with an offset to every caller | a hundred calls at once | yes, streamed |
| huey | bytes into its storage, without a task | not offered | no, taking deletes |
| litequeue | text and times | one transaction | until it is pruned |
| persist-queue | a pickle | `auto_commit=False` | no, taking deletes |
| DBOS | a value of a stream | not offered | yes, streamed |

WAL with `synchronous=FULL` for all but persist-queue and DBOS, which leave SQLite's own FULL (DBOS
with the rollback journal). persist-queue is not made for several processes; DBOS's streams have one
writer. Each play warms up by itself with one record. harn and the floor use apsw's SQLite, the
others the standard library's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal
from bench.peers import DBOS, HERE, HUEY, LITEQUEUE, PERSIST_QUEUE, Peer, contestant

SUBJECT = "event log, against peers"

ONE = "event log: append one at a time"
MANY = "event log: append, a hundred under way"
FOUR = "event log: append in four processes"


def contestants(
    contest: str, n: int, players: Iterable[Peer], **what: int
) -> tuple[Contestant, ...]:
    def play(peer: Peer, who: str, note: str = "") -> list[Contestant]:
        told: dict[str, Any] = {"contest": contest, "who": who, "n": n, **what}
        return contestant(peer, "log_contest", name=who, note=note, **told)

    return (
        *play(HERE, "bare apsw", "the floor"),
        *play(HERE, "harn", "offsets, subscribers"),
        *(each for peer in players for each in play(peer, peer.name)),
    )


def contests() -> Iterable[Contest]:
    """Compare appends, alone, by hundreds and from four processes."""
    everyone = (HUEY, LITEQUEUE, PERSIST_QUEUE, DBOS)
    yield Contest(ONE, contestants("one", 200, everyone), "µs/record", warm_up=False)
    yield Contest(
        MANY, contestants("many", 5000, (LITEQUEUE, PERSIST_QUEUE)), "µs/record", warm_up=False
    )
    yield Contest(
        FOUR, contestants("one", 100, (HUEY, LITEQUEUE), processes=4), "µs/record", warm_up=False
    )


WHY = "ours waits for the disk on a thread of its own, so that the event loop does not"
GOALS = [
    Goal(f"ahead of {peer} ({short})", contest, "harn", peer, at_most=1.0, why=WHY)
    for contest, short, peers in (
        (ONE, "one at a time", ("huey", "litequeue", "persist-queue", "DBOS")),
        (MANY, "a hundred under way", ("litequeue", "persist-queue")),
        (FOUR, "four processes", ("huey", "litequeue")),
    )
    for peer in peers
]
