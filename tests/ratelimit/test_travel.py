"""A provider counts a call when it arrives, not when it was admitted: no minute there is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import HarnError, Runtime, llm_rate_limit, llm_slot
from harn.clock import sleep_until
from harn.ratelimit import Limiter
from harn.ratelimit.limiter_files import LLM_FILE
from harn.storage import limits
from harn.testing import FakeClock, fresh_runtime
from tests.fake_clock import fake_clock
from tests.sweep import Run, sweep

MINUTE = 60_000
TRAVEL = 1000
TRAVEL_MS = "HARN_LLM_RATE_LIMIT_TRAVEL_MS"


@dataclass(frozen=True)
class Call:
    """Milliseconds in which one call waits for a connection, travels, and is answered."""

    connects: int = 0
    travels: int = 0
    answers: int = 0
    reserves: int = 1
    uses: int = 1


@dataclass
class Server:
    """What arrives, as the provider counts it."""

    arrivals: list[tuple[int, int]] = field(default_factory=list)

    def busiest(self) -> tuple[int, int]:
        """Return the most calls and the most tokens of any minute."""
        minutes = [
            [tokens for at, tokens in self.arrivals if begin <= at < begin + MINUTE]
            for begin, _ in self.arrivals
        ]
        return max(map(len, minutes)), max(map(sum, minutes))


async def play(calls: Sequence[Call], agents: int, **allowed: Any) -> Server:
    """Let *agents* make *calls* as fast as the limits allow, in virtual time."""
    server, left = Server(), list(reversed(calls))
    clock = FakeClock(0, autojump=True)

    async def pass_by(ms: int) -> None:
        if ms:
            await sleep_until(clock, clock.monotonic() + ms / 1000)

    async def agent() -> None:
        while left:
            call = left.pop()
            async with llm_slot("acme", input_tokens=call.reserves) as slot:
                await pass_by(call.connects)
                await slot.sending()
                await pass_by(call.travels)
                server.arrivals.append((clock.now_ms(), call.uses))
                await pass_by(call.answers)
                await slot.settle(input_tokens=call.uses)

    async with fresh_runtime(clock=clock):
        llm_rate_limit("acme", **allowed)
        async with asyncio.TaskGroup() as group:
            for _ in range(agents):
                group.create_task(agent())
    return server


@st.composite
def a_call(draw: st.DrawFn) -> Call:
    reserves = draw(st.integers(1, 30))
    return Call(
        connects=draw(st.just(0) | st.integers(0, 600) | st.integers(0, 90_000)),
        travels=draw(st.integers(0, TRAVEL // 2)),
        answers=draw(st.just(0) | st.integers(0, 90_000)),
        reserves=reserves,
        uses=draw(st.integers(0, reserves)),
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(a_call(), min_size=1, max_size=16), st.integers(1, 8))
def test_however_long_calls_travel_no_minute_of_arrivals_is_over_its_limit(
    calls: Any, agents: Any
) -> None:
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv(TRAVEL_MS, str(TRAVEL))

        server = asyncio.run(play(calls, agents, rpm=3, tpm=60))

    requests, tokens = server.busiest()
    assert len(server.arrivals) == len(calls)
    assert (requests <= 3, tokens <= 60) == (True, True)


def test_long_answers_cost_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRAVEL_MS, str(TRAVEL))
    dice = random.Random(7)
    calls = [Call(dice.randint(0, 400), dice.randint(0, 400), 30_000) for _ in range(220)]

    server = asyncio.run(play(calls, agents=30, rpm=20))

    first = server.arrivals[0][0]
    assert server.busiest()[0] == 20
    assert sum(at < first + 10 * MINUTE for at, _ in server.arrivals) >= 0.95 * 20 * 10


async def in_use(runtime: Runtime) -> int:
    line = runtime.service(Limiter).at(None, LLM_FILE)
    assert line.read_now
    now = line.read_now()
    found = await line.store.run(lambda: limits.list_buckets(now), write=False)
    return sum(each.used for each in found if each.key.endswith("rpm"))


async def enter() -> None:
    async with llm_slot("acme"):
        pass


async def test_a_reservation_counts_for_a_minute_and_the_travel(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setenv(TRAVEL_MS, "5s")
    async with fresh_runtime(clock=clock):
        llm_rate_limit("acme", rpm=1)
        await enter()
        waiting = asyncio.ensure_future(enter())

        await clock.advance("64s")
        assert not waiting.done()
        await clock.advance("1s")
        assert waiting.done()


async def test_under_a_fake_clock_nothing_travels(world: Runtime, clock: FakeClock) -> None:
    llm_rate_limit("acme", rpm=1)
    await enter()
    await clock.advance("60s")

    again = asyncio.ensure_future(enter())
    await clock.settle()

    assert again.done()


async def test_what_is_sent_late_counts_from_then_on(world: Runtime, clock: FakeClock) -> None:
    llm_rate_limit("acme", rpm=1, tpm=100)
    async with llm_slot("acme", input_tokens=100) as slot:
        await clock.advance("40s")
        await slot.sending()
        assert await in_use(world) == 1
        waiting = asyncio.ensure_future(enter())

        await clock.advance("30s")
        assert not waiting.done()
        assert await slot.settle(input_tokens=5), "its window began with the sending"
        await clock.advance("30s")
        assert waiting.done()


async def test_what_is_sent_after_its_window_waits_for_a_new_reservation(
    world: Runtime, clock: FakeClock
) -> None:
    llm_rate_limit("acme", rpm=1)
    async with llm_slot("acme") as slot:
        await clock.advance("70s")
        await enter()
        sending = asyncio.ensure_future(slot.sending())

        await clock.advance("59s")
        assert not sending.done()
        await clock.advance("1s")
        assert sending.done()
    assert slot.waited_ms == MINUTE


async def test_sending_at_once_changes_nothing(world: Runtime, clock: FakeClock) -> None:
    llm_rate_limit("acme", rpm=2)
    async with llm_slot("acme") as slot:
        await slot.sending()
    await clock.advance("60s")
    assert await in_use(world) == 0

    with pytest.raises(HarnError, match="not been entered"):
        await llm_slot("acme").sending()


async def test_an_unlimited_provider_has_nothing_to_date_again(
    world: Runtime, clock: FakeClock
) -> None:
    async with llm_slot("acme") as slot:
        await clock.advance("5m")
        await slot.sending()
    assert await in_use(world) == 0


async def test_wherever_it_is_cancelled_a_late_sending_leaves_the_quota_used(
    world: Runtime,
) -> None:
    clock = fake_clock(world)
    clock.autojump = True
    llm_rate_limit("acme", rpm=10)
    entered: list[float] = []

    async def case() -> None:
        async with llm_slot("acme") as slot:
            entered.append(clock.monotonic())
            await sleep_until(clock, clock.monotonic() + 5)
            await slot.sending()

    async def still_counts(run: Run) -> None:
        assert await in_use(world) in ((1, 2) if entered else (0,)), run
        await clock.advance("60s")
        assert await in_use(world) == 0
        entered.clear()

    assert await sweep(case, still_counts) > 4
