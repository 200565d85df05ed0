"""Rate limits: harn beside what users would pick instead, asked one after the other from a loop.

The limit is so high that no caller waits: this is the price of being counted.

| contestant | counts where | shared by processes | survives a killed process | window |
|---|---|---|---|---|
| bare apsw (floor) | SQLite, `synchronous=NORMAL` | yes | yes | none: it only inserts |
| harn | SQLite, `synchronous=NORMAL` | yes, in line | yes | sliding |
| pyrate-limiter | SQLite, NORMAL, file lock | yes, by trying again | yes | sliding |
| limits | **memory** | no (Redis could) | **no** | moving |
| aiolimiter | **memory** | no | **no** | leaky bucket |

The two in memory promise less and are shown for what the promise costs; goals are set against
those that keep it. *Five buckets* are all or nothing in harn and the floor, in one transaction; the
others ask five limiters in turn, and what was taken before a refusal stays taken. *Four processes*
share one file. Each contestant runs in processes of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal
from bench.peers import AIOLIMITER, HERE, LIMITS, PYRATE, Peer, contestant

SUBJECT = "rate limits, against peers"

ONE, FIVE, FOUR = "limit: one bucket", "limit: five buckets", "limit: four processes"


def play(peer: Peer, who: str, n: int, note: str = "", **what: Any) -> list[Contestant]:
    return contestant(
        peer, "limit_contest", name=who, note=note, contest="acquire", who=who, n=n, **what
    )


def contests() -> Iterable[Contest]:
    """Compare one bucket, five, and four processes."""
    for name, buckets in ((ONE, 1), (FIVE, 5)):
        yield Contest(
            name,
            (
                *play(HERE, "bare apsw", 2000, "only inserts", buckets=buckets),
                *play(HERE, "harn", 2000, buckets=buckets),
                *play(PYRATE, "pyrate-limiter", 500, buckets=buckets),
                *play(LIMITS, "limits", 10_000, "memory, one process", buckets=buckets),
                *play(AIOLIMITER, "aiolimiter", 10_000, "memory, one process", buckets=buckets),
            ),
            "µs/acquire",
        )
    yield Contest(
        FOUR,
        (
            *play(HERE, "bare apsw", 500, "only inserts", processes=4),
            *play(HERE, "harn", 500, processes=4),
            *play(PYRATE, "pyrate-limiter", 200, processes=4),
        ),
        "µs/acquire",
    )


GOALS = [
    Goal("half of pyrate-limiter's cost (one bucket)", ONE, "harn", "pyrate-limiter", at_most=0.5),
    Goal("ahead of pyrate-limiter (five buckets)", FIVE, "harn", "pyrate-limiter", at_most=1.0),
    Goal("ahead of pyrate-limiter (four processes)", FOUR, "harn", "pyrate-limiter", at_most=1.0),
]
