"""Channels, locks and select: harn beside asyncio, anyio and aiologic. Nothing here is durable.

*1:1* and *4:4* pass messages between so many producers and consumers at capacity 256. *A lock* is
taken and released: alone, and by ten tasks that hold it for one turn of the loop; *a semaphore*
of four likewise by ten tasks. anyio's usual lock passes through the loop each time; the quicker
`fast_acquire` stands beside it. *Select* takes from two channels whichever has something: asyncio
by `wait` on two gets that stay under way (a cancelled one could lose a value), anyio and aiologic,
which have no select, by two tasks that pass on to a third stream or queue, harn by
`channel_select`, which takes nothing from the others.

harn's channel may also be used from threads, as aiologic's queue; asyncio's and anyio's may not.
harn counts metrics and watches for deadlocks; no peer does. What that costs a semaphore is in
docs/design/permits.md. Each runs in a process of its
own, with a warm-up in it that is not timed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, Goal
from bench.peers import AIOLOGIC, ANYIO, HERE, Peer, contestant

SUBJECT = "primitives, against peers"

CHANNELS = {"1:1": "channel, 1:1", "4:4": "channel, 4:4"}
LOCKS = {"lock, 1": "a lock without contention", "lock, 10": "a lock ten tasks want"}
SEMAPHORE = "a semaphore of four ten tasks want"
LOCK_WHY = "a few hundredths either way, by the run; see permits.md"
SEMAPHORE_WHY = "what each task holds, times, the owner and the look-up by name; see permits.md"
SELECT = "select from two channels"


def play(peer: Peer, contest: str, who: str, n: int, note: str = "") -> list[Contestant]:
    what: dict[str, Any] = {"contest": contest, "who": who, "n": n, "warm": n // 20}
    return contestant(peer, "primitive_contest", name=who, note=note, **what)


def contests() -> Iterable[Contest]:
    """Compare passing, locking and selecting."""
    for contest, name in CHANNELS.items():
        yield Contest(
            name,
            (
                *play(HERE, contest, "asyncio.Queue", 40_000),
                *play(HERE, contest, "harn", 40_000),
                *play(ANYIO, contest, "anyio", 40_000),
                *play(AIOLOGIC, contest, "aiologic", 40_000),
            ),
        )
    for contest, name in LOCKS.items():
        yield Contest(
            name,
            (
                *play(HERE, contest, "asyncio.Lock", 20_000),
                *play(HERE, contest, "harn", 20_000, "a mutex by name, watched"),
                *play(ANYIO, contest, "anyio", 20_000),
                *play(ANYIO, contest, "anyio, fast_acquire", 20_000),
                *play(AIOLOGIC, contest, "aiologic", 20_000),
            ),
        )
    yield Contest(
        SEMAPHORE,
        (
            *play(HERE, "semaphore", "asyncio.Semaphore", 20_000),
            *play(HERE, "semaphore", "harn", 20_000, "by name, watched"),
            *play(ANYIO, "semaphore", "anyio", 20_000),
            *play(AIOLOGIC, "semaphore", "aiologic", 20_000),
        ),
    )
    yield Contest(
        SELECT,
        (
            *play(HERE, "select", "asyncio", 10_000, "wait on two gets"),
            *play(HERE, "select", "harn", 10_000),
            *play(ANYIO, "select", "anyio", 10_000, "two tasks and a third stream"),
            *play(AIOLOGIC, "select", "aiologic", 10_000, "two tasks and a third queue"),
        ),
    )


GOALS = [
    *(
        Goal(f"ahead of {peer} ({name})", name, "harn", peer, at_most=1.0)
        for name in CHANNELS.values()
        for peer in ("asyncio.Queue", "anyio", "aiologic")
    ),
    *(
        Goal(f"ahead of {peer} ({name})", name, "harn", peer, at_most=1.0, why=LOCK_WHY)
        for name in LOCKS.values()
        for peer in ("anyio", "aiologic")
    ),
    *(
        Goal(
            f"ahead of {peer} ({SEMAPHORE})",
            SEMAPHORE,
            "harn",
            peer,
            at_most=1.0,
            why=SEMAPHORE_WHY,
        )
        for peer in ("anyio", "aiologic")
    ),
    *(
        Goal(f"ahead of {peer} ({SELECT})", SELECT, "harn", peer, at_most=1.0)
        for peer in ("asyncio", "anyio", "aiologic")
    ),
]
