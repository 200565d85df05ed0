"""Pools: harn beside what users would pick instead. Nothing here is durable.

*A no-op* and *one millisecond of sleep*, ten at once, submitted all at a time and awaited. The
floor is the leanest thing that caps: ten workers that take closures from a deque and await them, no
task, no handle, no result, no error but the first. A millisecond with ten at once cannot cost less
than 100 µs. harn gives each a handle, a final snapshot and two receipts in its log in memory.

| contestant | caps | a handle for each | a record of each |
|---|---|---|---|
| worker loop (floor) | yes | no | no |
| Semaphore in a TaskGroup | yes | a task | no |
| harn | yes | yes | yes, audited |
| anyio: CapacityLimiter in a task group | yes | no | no |
| aiometer: `run_all` | yes | no, results in order | no |
| aiojobs | yes | yes | no |
| ThreadPoolExecutor | yes, threads | a future | no |

*A queued task* is the growth of resident memory for each of a million that wait, handle and all, in
a fresh process, so it is measured once. With harn they have 100,000 keys that take turns; the floor
has a deque for each key; the others know no keys. anyio, which would want six gigabytes and a
minute, has 100,000 to hold. aiometer takes no part: it wants the whole list beforehand.

Each contestant runs in a process of its own, with a warm-up in it that is not timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal
from bench.peers import AIOJOBS, AIOMETER, ANYIO, HERE, Peer, contestant

SUBJECT = "pools, against peers"

NOOP = "pools: a no-op, ten at once"
SLEEP = "pools: 1 ms, ten at once"
QUEUED = "pools: memory of one of a million queued tasks"


def contestants(contest: str, n: int, warm: int = 0) -> tuple[Contestant, ...]:
    queued = contest == "queued"

    def play(peer: Peer, who: str, note: str = "") -> list[Contestant]:
        many = n // 10 if queued and peer is ANYIO else n
        what: dict[str, Any] = {"contest": contest, "who": who, "n": many, "warm": warm}
        return contestant(peer, "pool_contest", name=who, note=note, **what)

    return (
        *play(HERE, "worker loop", "the floor"),
        *play(HERE, "harn", "handle, snapshot, audit"),
        *play(HERE, "Semaphore in a TaskGroup"),
        *play(ANYIO, "anyio"),
        *(play(AIOMETER, "aiometer") if not queued else ()),
        *play(AIOJOBS, "aiojobs"),
        *play(HERE, "ThreadPoolExecutor", "threads"),
    )


def contests() -> Iterable[Contest]:
    """Compare short closures, a millisecond, and memory."""
    yield Contest(NOOP, contestants("no-op", 20_000, warm=2000), "µs/task", warm_up=False)
    yield Contest(SLEEP, contestants("1 ms", 2000, warm=100), "µs/task", warm_up=False)
    yield Contest(QUEUED, contestants("queued", 1_000_000), "bytes", rounds=1, warm_up=False)


WHY = "nearly all of it is the sleep itself, the same for all; less than the rounds differ"
GOALS = [
    Goal(f"ahead of {peer} ({short})", contest, "harn", peer, at_most=1.0, why=WHY)
    for contest, short, peers in (
        (
            NOOP,
            "a no-op",
            ("Semaphore in a TaskGroup", "anyio", "aiometer", "aiojobs", "ThreadPoolExecutor"),
        ),
        (SLEEP, "1 ms", ("Semaphore in a TaskGroup", "anyio", "aiometer", "aiojobs")),
        (QUEUED, "memory", ("Semaphore in a TaskGroup", "anyio", "aiojobs", "ThreadPoolExecutor")),
    )
    for peer in peers
]
