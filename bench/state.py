"""Steps and stored values: what a step costs, and reading among a million keys.

*A step* is a no-op with a result of 200 characters, twenty in each of a hundred jobs that run at
once on SQLite, against an append to the event log of the same size by as many callers. *Of ours* is
the CPU time of the process, all its threads, without the disk. *Reading* is `store_get` against a
read by the primary key of a table with as many rows, through the same store; *opening* is a runtime
on the file and a list of a hundred keys. The files are filled by SQL.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import apsw

from bench.growth import home
from bench.harness import Contest, Contestant, Goal
from bench.queue import on_sqlite
from harn import Job, Runtime, drain, event_log_emit, step, store_get, store_list, store_set
from harn.storage import Store, ask
from harn.workers import worker_queue

SUBJECT = "state: steps and stored values"

STEP = "a step, 100 agents at once"
OURS = "a step, 100 agents at once, CPU of ours"
GET = "one value among many keys"
OPEN = "open a store, and list a prefix of 100 keys"
AGENTS, STEPS, READS = 100, 20, 500
SIZES = (1_000, 1_000_000)
RESULT = {"text": "x" * 200}
NUMBERS = "WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < ?1)"
VALUE = '{"n":1}'
KEY = "printf('k/%05d/%02d', n / 100, n % 100)"

Read = Callable[[Runtime, str], Awaitable[Any]]


async def noop() -> dict[str, str]:
    """Do nothing, as the function of a step."""
    return RESULT


async def in_steps(job: Job) -> None:
    for _ in range(STEPS):
        await step("noop", noop)


async def steps(clock: Callable[[], float], agents: int) -> float:
    await worker_queue("q").enqueue_many(range(agents))
    began = clock()
    await drain("q", in_steps, concurrency=agents)
    return (clock() - began) / (agents * STEPS) * 1e6


async def appends(clock: Callable[[], float], callers: int) -> float:
    async def emit() -> None:
        for _ in range(STEPS):
            await event_log_emit("bench", "noop", RESULT)

    began = clock()
    await asyncio.gather(*(emit() for _ in range(callers)))
    return (clock() - began) / (callers * STEPS) * 1e6


@functools.cache
def filled(size: int) -> str:
    """Make a file with so many keys, and as many cursors; return its URL."""
    path = home() / "state.sqlite"

    async def first() -> None:
        async with Runtime(storage=f"sqlite:///{path}"):
            await store_set("k/00000/01", {"n": 1})

    asyncio.run(first())
    with apsw.Connection(str(path)) as db:
        payload = (
            f"""'{{"space":"default","key":"' || {KEY} || '","version":1,"value":{{"n":1}}}}'"""
        )
        db.execute(
            f"{NUMBERS} INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms) "
            f"SELECT e.topic_id, n, e.kind, CAST({payload} AS BLOB), e.headers, e.occurred_at_ms "
            "FROM n, events e WHERE e.id = 1 AND e.kind = 'state_set'",
            (size,),
        )
        db.execute(
            f"{NUMBERS} INSERT INTO state_keys (space, key, version, is_deleted, entry, value) "
            f"SELECT 'v:default', {KEY}, 1, 0, n, CAST('{VALUE}' AS BLOB) FROM n",
            (size,),
        )
        db.execute(
            f"{NUMBERS} INSERT INTO cursors (topic, consumer, position) "
            f"SELECT 'c', {KEY}, n FROM n",
            (size,),
        )
        db.execute("UPDATE topics SET head = ? WHERE name = 'state.values'", (size,))
    return f"sqlite:///{path}"


def key_of(n: int) -> str:
    return f"k/{n // 100:05}/{n % 100:02}"


def reading(size: int, read: Read) -> float:
    """Return what one *read* costs, of key after key, in microseconds."""
    url = filled(size)

    async def inside() -> float:
        async with Runtime(storage=url) as runtime:
            await read(runtime, key_of(2))
            began = time.perf_counter()
            for i in range(READS):
                assert await read(runtime, key_of(2 + i * ((size - 2) // READS)))
            return (time.perf_counter() - began) / READS * 1e6

    return asyncio.run(inside())


async def bare(runtime: Runtime, key: str) -> Any:
    def read() -> Any:
        return (yield ask("read_cursor", topic="c", consumer=key))

    return await runtime.service(Store).run(read, write=False)


async def value(runtime: Runtime, key: str) -> Any:
    return await store_get(key)


def opening(size: int) -> float:
    """Return what it costs to open a runtime and list a hundred keys, in microseconds."""
    url = filled(size)

    async def inside() -> float:
        began = time.perf_counter()
        async with Runtime(storage=url):
            found = await store_list("k/00005/")
        assert len(found) == 100
        return (time.perf_counter() - began) * 1e6

    return asyncio.run(inside())


def contests() -> Iterable[Contest]:
    """Compare steps with appends, and reads at both sizes."""
    for name, clock in ((STEP, time.perf_counter), (OURS, time.process_time)):
        yield Contest(
            name,
            (
                Contestant("step", on_clock(steps, clock)),
                Contestant("event_log_emit", on_clock(appends, clock)),
                *([Contestant(LIMIT, lambda: 60.0)] if name == OURS else ()),
            ),
            "µs/step",
        )
    yield Contest(
        GET,
        tuple(
            Contestant(f"{name}, {size:,} keys", functools.partial(reading, size, read))
            for size in SIZES
            for name, read in (("a read by primary key", bare), ("store_get", value))
        ),
    )
    yield Contest(
        OPEN,
        tuple(Contestant(f"{size:,} keys", functools.partial(opening, size)) for size in SIZES),
    )


def on_clock(
    run: Callable[[Callable[[], float], int], Awaitable[float]], clock: Callable[[], float]
) -> Callable[[], float]:
    return functools.partial(on_sqlite, functools.partial(run, clock), AGENTS)


LIMIT = "the limit, 60 µs"
FEW, MANY = (f"{size:,} keys" for size in SIZES)
GOALS = [
    Goal("a step's CPU time, against 60 µs", OURS, "step", LIMIT, at_most=1.0),
    Goal("store_get among 1,000,000, against a read by primary key", GET, f"store_get, {MANY}",
         f"a read by primary key, {MANY}", at_most=1.5),
    Goal("open and list a prefix of 1,000,000, against 1,000", OPEN, MANY, FEW, at_most=1.5),
]  # fmt: skip
