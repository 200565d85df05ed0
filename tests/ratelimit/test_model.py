"""The whole limiter under a fake clock, against a model that recomputes every window each tick."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings, strategies as st

from harn import Bucket, RateLimitGrant, Runtime, durable_rate_limit_acquire
from harn.context import current_frame_var
from harn.ratelimit import stored_window, window
from harn.testing import FakeClock, fresh_runtime
from tests.ratelimit.rulesmodel import RulesModel

RULES = {"a": (5, 40), "b": (3, 25), "c": (8, 60)}


@dataclass
class Wish:
    at: int
    units: dict[str, int]
    timeout: int | None
    settle: tuple[int, int] | None = None
    admitted: int | None = None
    left: int | None = None
    charges: dict[str, list[int]] = field(default_factory=dict)


def model(wishes: list[Wish], until: int) -> None:
    """Tick by tick: first come, first served among those who share a bucket; all or none."""
    rows: dict[str, list[list[int]]] = {key: [] for key in RULES}
    waiting: list[Wish] = []
    for now in range(until):
        serve(waiting, rows, now)
        for wish in wishes:
            if wish.settle and wish.admitted is not None:
                after, units = wish.settle
                if wish.admitted + after == now:
                    for key, row in wish.charges.items():
                        if now < row[0] + RULES[key][1]:
                            row[1] = min(units, RULES[key][0])
                    serve(waiting, rows, now)
        for wish in wishes:
            if wish.at == now:
                waiting.append(wish)
                serve(waiting, rows, now)


def serve(waiting: list[Wish], rows: dict[str, list[list[int]]], now: int) -> None:
    blocked: set[str] = set()
    for wish in list(waiting):
        room = all(fits(rows[key], key, units, now) for key, units in wish.units.items())
        if room and not blocked & set(wish.units):
            for key, units in wish.units.items():
                wish.charges[key] = [now, min(units, RULES[key][0])]
                rows[key].append(wish.charges[key])
            wish.admitted = now
            waiting.remove(wish)
        elif wish.timeout is not None and now >= wish.at + wish.timeout:
            wish.left = now
            waiting.remove(wish)
        else:
            blocked |= set(wish.units)


def fits(rows: list[list[int]], key: str, units: int, now: int) -> bool:
    limit, window = RULES[key]
    used = sum(row[1] for row in rows if now < row[0] + window)
    return used == 0 or used + min(units, limit) <= limit


wishes = st.lists(
    st.builds(
        Wish,
        at=st.integers(0, 120),
        units=st.dictionaries(st.sampled_from("abc"), st.integers(1, 10), min_size=1),
        timeout=st.none() | st.sampled_from([0, 7, 30, 100]),
        settle=st.none() | st.tuples(st.integers(1, 50), st.integers(0, 10)),
    ),
    min_size=1,
    max_size=14,
)


async def carry_out(wishes: list[Wish]) -> list[tuple[int | None, int | None]]:
    """Let every wish come at its time; return when each was admitted, or gave up."""
    clock = FakeClock(0)
    found: list[tuple[int | None, int | None]] = [(None, None)] * len(wishes)
    to_settle: list[tuple[int, int, RateLimitGrant]] = []

    async def one(number: int, wish: Wish) -> None:
        buckets = [Bucket(k, RULES[k][0], u, RULES[k][1]) for k, u in wish.units.items()]
        grant = await durable_rate_limit_acquire(buckets=buckets, timeout_ms=wish.timeout)
        found[number] = (clock.now_ms(), None) if grant.ok else (None, clock.now_ms())
        if grant.ok and wish.settle:
            to_settle.append((clock.now_ms() + wish.settle[0], number, grant))

    async with fresh_runtime(clock=clock):
        tasks: list[asyncio.Task[None]] = []
        while clock.now_ms() <= 120 or to_settle or not all(task.done() for task in tasks):
            now = clock.now_ms()
            assert now < 2500
            for due in sorted(each for each in to_settle if each[0] == now):
                to_settle.remove(due)
                wish = wishes[due[1]]
                assert wish.settle
                await due[2].settle(dict.fromkeys(wish.units, wish.settle[1]))
                await clock.settle()
            for number, wish in enumerate(wishes):
                if wish.at == now:
                    tasks.append(asyncio.create_task(one(number, wish)))
                    await clock.settle()
            await clock.advance("1ms")
        await asyncio.gather(*tasks)
    return found


@settings(deadline=None, max_examples=150)
@given(wishes, st.sampled_from([1, 2, 16]), st.sampled_from([1, 3, 32]))
def test_R1_R2_R7_each_caller_is_admitted_exactly_when_the_model_says(
    wishes: Any, page: Any, spill: Any
) -> None:
    before = stored_window.PAGE, window.SPILL
    stored_window.PAGE, window.SPILL = page, spill
    try:
        found = asyncio.run(carry_out(wishes))
    finally:
        stored_window.PAGE, window.SPILL = before
    model(wishes, 2500)

    assert found == [(wish.admitted, wish.left) for wish in wishes]


turns = st.lists(
    st.tuples(
        st.integers(0, 6),  # milliseconds since the last turn
        st.integers(0, 1),  # which of two processes
        st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1),
        st.sampled_from([1, 1, 1, 1, 2]),  # how many at once
        st.none() | st.integers(0, 10),  # settle what was granted last
    ),
    min_size=10,
    max_size=40,
)


async def take_turns(turns: Any, where: Path) -> tuple[list[bool], list[bool]]:
    """Let two processes take turns on one file; return what was granted, here and by the model."""
    clock, found, expected = FakeClock(0), [], []
    rows: dict[str, list[list[int]]] = {key: [] for key in RULES}
    async with Runtime(clock=clock) as one, Runtime(clock=clock) as two:
        for passed, who, units, together, settle in turns:
            await clock.advance(passed)
            buckets = [Bucket(key, RULES[key][0], n, RULES[key][1]) for key, n in units.items()]
            token = current_frame_var.set((one, two)[who].frame)
            grants = await asyncio.gather(
                *(
                    durable_rate_limit_acquire(buckets=buckets, timeout_ms=0, state_path=where)
                    for _ in range(together)
                )
            )
            current_frame_var.reset(token)
            found += [grant.ok for grant in grants]
            now, charged = clock.now_ms(), []
            for _ in range(together):
                room = all(fits(rows[key], key, n, now) for key, n in units.items())
                expected.append(room)
                if room:
                    charged = [[now, min(n, RULES[key][0])] for key, n in units.items()]
                    for key, row in zip(units, charged, strict=True):
                        rows[key].append(row)
            if settle is not None and charged:
                last = [grant for grant in grants if grant.ok][-1]
                await last.settle(dict.fromkeys(units, settle))
                for key, row in zip(units, charged, strict=True):
                    row[1] = min(settle, RULES[key][0])
    return found, expected


@settings(deadline=None, max_examples=100)
@given(turns, st.sampled_from([1, 3, 32]))
def test_R1_R2_processes_that_take_turns_admit_what_one_would(turns: Any, spill: Any) -> None:
    before, window.SPILL = window.SPILL, spill
    try:
        with TemporaryDirectory() as where:
            found, expected = asyncio.run(take_turns(turns, Path(where) / "limits.sqlite"))
    finally:
        window.SPILL = before

    assert found == expected


named = st.lists(
    st.tuples(
        st.integers(0, 20),  # milliseconds since the last turn
        st.integers(0, 1),  # which of two processes
        st.sampled_from([(5, 10), (12, 60), (3, 4), (8, 60), (30, 200)]),
        st.integers(1, 6),  # units
    ),
    min_size=10,
    max_size=60,
)


async def name_rules(turns: Any, where: str | Path) -> tuple[list[bool], list[bool]]:
    """Let two processes name one key by different rules; return what was granted, and should."""
    clock, model, found, expected = FakeClock(0), RulesModel(), [], []
    async with Runtime(clock=clock) as one, Runtime(clock=clock) as two:
        for passed, who, (limit, span), units in turns:
            await clock.advance(passed)
            token = current_frame_var.set((one, two)[who].frame)
            grant = await durable_rate_limit_acquire(
                key="k", limit=limit, units=units, window_ms=span, timeout_ms=0, state_path=where
            )
            current_frame_var.reset(token)
            found.append(grant.ok)
            expected.append(model.ask(units, limit, span, clock.now_ms()))
    return found, expected


@settings(deadline=None, max_examples=150)
@given(named, st.sampled_from([1, 3, 32]), st.sampled_from([1, 2, 16]))
def test_R6_processes_that_name_different_rules_admit_what_the_model_does(
    turns: Any, spill: Any, page: Any
) -> None:
    before = window.SPILL, stored_window.PAGE
    window.SPILL, stored_window.PAGE = spill, page
    try:
        with TemporaryDirectory() as where:
            found, expected = asyncio.run(name_rules(turns, Path(where) / "limits.sqlite"))
    finally:
        window.SPILL, stored_window.PAGE = before

    assert found == expected
