"""One key, several rules: each of them holds for all, in every store and after a crash."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime, durable_rate_limit_acquire as acquire
from harn.current import current_runtime
from harn.ratelimit import Limiter
from harn.testing import FakeClock
from tests.ratelimit.rulesmodel import RulesModel

SLOW, FAST = {"limit": 40, "window_ms": "20s"}, {"limit": 5, "window_ms": "1s"}


async def test_R6_five_a_second_and_forty_in_twenty_seconds_hold_for_both_callers(
    world: Runtime, clock: FakeClock
) -> None:
    granted: list[int] = []

    async def caller(rule: Any) -> None:
        while clock.now_ms() < start + 60_000:
            await acquire(key="k", **rule)
            granted.append(clock.now_ms() - start)

    start = clock.now_ms()
    callers = [asyncio.create_task(caller(rule)) for rule in (SLOW, FAST)]
    for _ in range(160):
        await clock.advance("500ms")
    await asyncio.gather(*callers)

    for first in granted:
        assert sum(first <= at < first + 1000 for at in granted) <= 5
        assert sum(first <= at < first + 20_000 for at in granted) <= 40
    assert sum(at < 60_000 for at in granted) == 120


async def test_R6_a_rule_holds_while_its_caller_waits(world: Runtime, clock: FakeClock) -> None:
    await acquire(key="k", limit=1, window_ms="1s")
    line = [asyncio.create_task(acquire(key="k", limit=9, window_ms="1s")) for _ in range(3)]
    await clock.settle()
    strict = asyncio.create_task(acquire(key="k", limit=2, window_ms="5s"))
    await clock.settle()

    granted = []
    for second in range(40):
        await clock.advance("500ms")
        granted.append((second, sum(task.done() for task in (*line, strict))))
    await asyncio.gather(*line, strict)

    assert granted[-1] == (39, 4)
    for first, before in granted:
        after = [done for second, done in granted if second < first + 10]
        assert after[-1] - before <= 2, "two in five seconds, as the one who waits has asked"


async def test_R6_a_rule_that_was_only_refused_is_kept_in_the_store(
    world: Runtime, clock: FakeClock
) -> None:
    await acquire(key="k", limit=1, window_ms="1s")
    await clock.advance("900ms")
    refused = await acquire(key="k", limit=1, window_ms="1s", timeout_ms=0)
    await clock.advance("300ms")
    first = await acquire(key="k", limit=10, window_ms="1s", timeout_ms=0)
    second = await acquire(key="k", limit=10, window_ms="1s", timeout_ms=0)

    assert (refused.ok, first.ok, second.ok) == (False, True, False)


async def test_R6_random_callers_of_five_rules_get_what_the_model_says(
    world: Runtime, clock: FakeClock
) -> None:
    rules = [(5, 10), (12, 60), (3, 4), (8, 60), (30, 200)]
    chance, model = random.Random(17), RulesModel()

    for _ in range(300):
        await clock.advance(chance.randrange(0, 15))
        (limit, span), units = chance.choice(rules), chance.randrange(1, 7)
        grant = await acquire(key="k", limit=limit, units=units, window_ms=span, timeout_ms=0)
        assert grant.ok == model.ask(units, limit, span, clock.now_ms())


async def test_a_short_window_that_is_named_again_and_again_leaves_no_rule_behind(
    world: Runtime, clock: FakeClock
) -> None:
    for limit in range(1, 200):
        await acquire(key="k", limit=limit, window_ms="1s", timeout_ms=0)
        await clock.advance("5s")
    line = current_runtime().service(Limiter).at(None)

    assert line.use.units["k"][0] == 1


CHILD = """
import asyncio, functools, sys, harn
async def main():
    take = functools.partial(harn.durable_rate_limit_acquire, state_path=sys.argv[1])
    async with harn.Runtime():
        await take(key="k", limit=3, units=3, window_ms="30s")
        await take(key="k", limit=1, window_ms="20s", timeout_ms=0)
        print("ready", flush=True)
        await take(key="k", limit=2, window_ms="40s")
asyncio.run(main())
"""


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_R6_the_rules_of_a_killed_process_hold(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = str(tmp_path / "limits.sqlite")
    if engine == "postgres":
        where = request.getfixturevalue("postgres_url")
    child = subprocess.Popen([sys.executable, "-c", CHILD, where], stdout=subprocess.PIPE)
    assert child.stdout
    try:
        await asyncio.to_thread(child.stdout.readline)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()

    grant = await acquire(key="k", limit=100, window_ms=1, timeout_ms=0, state_path=where)

    assert not grant.ok
    assert 10_000 < grant.retry_after_ms <= 40_000, "not before its longest rule allows it"
