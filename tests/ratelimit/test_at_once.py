"""A lone caller on a file is served on the loop's own thread; other callers wait in line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from harn import Bucket, RateLimitGrant, Runtime, durable_rate_limit_acquire
from harn.ratelimit import Limiter
from harn.ratelimit.records import Granted, Want
from harn.storage.engines.sqlite.sqlite_driver import SqliteDriver
from harn.storage.engines.sqlite_session import Session
from harn.storage.operations import Ask, Rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.sqlite"


class Watched:
    """A runtime's limiter on a file, and how often each of the two ways was taken."""

    def __init__(self, runtime: Runtime, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.line = runtime.service(Limiter).at(path)
        self.at_once = self.handed_over = 0
        driver = self.line.store.driver
        assert isinstance(driver, SqliteDriver)
        now, later = driver.try_now, driver.submit

        def try_now(recipe: Any) -> Any:
            found = now(recipe)
            self.at_once += found is not None
            return found

        def submit(*args: Any, **options: Any) -> Any:
            self.handed_over += 1
            return later(*args, **options)

        monkeypatch.setattr(driver, "try_now", try_now)
        monkeypatch.setattr(driver, "submit", submit)

    async def take(self, key: str = "k", limit: int = 100, **options: Any) -> RateLimitGrant:
        return await durable_rate_limit_acquire(
            key=key, limit=limit, state_path=self.path, window_ms=60_000, **options
        )


@pytest.fixture
async def limiter(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    """Opened by a first acquire, which the writer's thread carries out."""
    async with Runtime() as runtime:
        watched = Watched(runtime, path, monkeypatch)
        await watched.take("other")
        watched.at_once = watched.handed_over = 0
        yield watched


async def test_a_lone_caller_needs_no_thread(limiter: Watched) -> None:
    grant = await limiter.take(units=3)
    await grant.settle({"k": 1})
    refused = await limiter.take(units=100, timeout_ms=0)

    assert (limiter.at_once, limiter.handed_over) == (3, 0)
    assert refused.timed_out
    assert refused.retry_after_ms > 50_000


async def test_those_who_come_together_share_a_transaction(limiter: Watched) -> None:
    grants = await asyncio.gather(*(limiter.take() for _ in range(64)))

    assert all(grant.ok for grant in grants)
    assert (limiter.at_once, limiter.handed_over) == (0, 1)


async def test_a_caller_that_comes_in_the_same_turn_waits_behind(limiter: Watched) -> None:
    first, *rest = await asyncio.gather(
        *(limiter.take(limit=5, timeout_ms=0, units=units) for units in (5, 1, 1))
    )

    assert first.ok
    assert [grant.timed_out for grant in rest] == [True, True]


async def test_others_run_between_the_acquires_of_a_loop(limiter: Watched) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(10):
        await limiter.take()
    counting.cancel()

    assert turns >= 10


async def test_a_cancelled_caller_charges_nothing_and_holds_no_other_up(limiter: Watched) -> None:
    leaving = asyncio.ensure_future(limiter.take(limit=5, units=5))
    behind = asyncio.ensure_future(limiter.take(limit=5, units=5))
    await asyncio.sleep(0)
    leaving.cancel()

    assert (await behind).ok
    assert leaving.cancelled()


async def test_the_loop_runs_on_while_another_process_holds_the_lock(limiter: Watched) -> None:
    other = apsw.Connection(str(limiter.path))
    other.execute("BEGIN IMMEDIATE")

    waiting = asyncio.ensure_future(limiter.take())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    other.execute("COMMIT")

    assert (await waiting).ok
    assert (limiter.at_once, limiter.handed_over) == (0, 1)


async def test_a_request_for_many_buckets_goes_to_the_writer(limiter: Watched) -> None:
    buckets = [Bucket(f"b{number}", limit=1) for number in range(17)]

    grant = await durable_rate_limit_acquire(buckets=buckets, state_path=limiter.path)

    assert grant.ok
    assert (limiter.at_once, limiter.handed_over) == (0, 1)


async def test_a_caller_that_finds_no_room_waits_in_line(limiter: Watched) -> None:
    full = await limiter.take(units=100)
    waiting = asyncio.ensure_future(limiter.take())
    while not limiter.line.waiting:
        await asyncio.sleep(0)

    assert (await limiter.take(timeout_ms=0)).timed_out  # it does not overtake

    await full.settle({"k": 99})
    assert (await waiting).ok


async def test_what_a_neighbour_has_taken_between_two_acquires_counts(
    limiter: Watched, path: Path
) -> None:
    wanted = (Want("k", 10, 60_000_000, 1),)
    async with Runtime() as neighbour:
        other = neighbour.service(Limiter).at(path)
        verdicts = [await line.ask(wanted, 0) for _ in range(8) for line in (limiter.line, other)]

    assert [isinstance(verdict, Granted) for verdict in verdicts] == [True] * 10 + [False] * 6


async def test_what_many_have_taken_between_two_acquires_counts(limiter: Watched) -> None:
    await limiter.take(limit=66)
    await asyncio.gather(*(limiter.take(limit=66) for _ in range(64)))

    assert (await limiter.take(limit=66, timeout_ms=0)).ok
    assert (await limiter.take(limit=66, timeout_ms=0)).timed_out


async def test_a_bucket_is_read_once_while_no_other_connection_writes(
    limiter: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    execute = Session.execute

    def watched(session: Session, asked: Ask) -> Rows:
        read.append(asked.name)
        return execute(session, asked)

    monkeypatch.setattr(Session, "execute", watched)
    buckets = [Bucket(key, limit=100) for key in "abc"]
    for _ in range(5):
        await durable_rate_limit_acquire(buckets=buckets, state_path=limiter.path)

    assert read.count("limit_make") == 1
    assert read.count("limit_buckets") == 2  # before and after they were made


async def test_what_could_not_be_committed_is_not_remembered(
    limiter: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limiter.take(limit=3)
    commit, broken = Session.commit, [True]

    def fail_once(session: Session) -> None:
        if broken:
            broken.clear()
            raise apsw.IOError("disk on fire")
        commit(session)

    monkeypatch.setattr(Session, "commit", fail_once)
    await limiter.take(limit=3)

    assert (await limiter.take(limit=3, timeout_ms=0)).ok
    assert (await limiter.take(limit=3, timeout_ms=0)).timed_out
