"""A model call's seat and quota; what providers say about coming back; trying again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harn import (
    DeadlineExceeded,
    HarnError,
    InvalidOption,
    RateLimitError,
    Runtime,
    llm_rate_limit,
    llm_slot,
    with_rate_limit,
)
from harn.ratelimit import Limiter
from harn.ratelimit.call_slots import CallSlotsByRoute
from harn.ratelimit.retry_after import is_retryable, wait_in
from harn.storage import limits
from harn.testing import FakeClock, fresh_runtime
from tests.fake_clock import fake_clock
from tests.sweep import Run, sweep

NOW = 1_767_225_600_000  # 2026-01-01T00:00:00Z


class ApiError(Exception):
    """As the clients of OpenAI and Anthropic raise them."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        self.response = type("Response", (), {"headers": headers or {}})()


def spawn(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(coroutine)


async def used(runtime: Runtime) -> dict[str, int]:
    from harn.ratelimit.limiter_files import LLM_FILE

    line = runtime.service(Limiter).at(None, LLM_FILE)
    assert line.read_now
    now = line.read_now()
    found = await line.store.run(lambda: limits.list_buckets(now), write=False)
    return {each.key: each.used for each in found if not each.key.endswith("cooldown")}


async def test_a_call_charges_provider_and_model_and_settles_both(world: Runtime) -> None:
    llm_rate_limit("acme", rpm=10, tpm=1000, input_tpm=800)
    llm_rate_limit("acme", "big", output_tpm=500)

    async with llm_slot("acme", "big", input_tokens=100, output_tokens=200) as slot:
        assert await used(world) == {
            "llm:provider:acme:rpm": 1,
            "llm:provider:acme:tpm": 300,
            "llm:provider:acme:input_tpm": 100,
            "llm:model:acme:big:output_tpm": 200,
        }
        await slot.settle(input_tokens=90, output_tokens=20)
        await slot.settle(output_tokens=30)

    assert await used(world) == {
        "llm:provider:acme:rpm": 1,
        "llm:provider:acme:tpm": 120,
        "llm:provider:acme:input_tpm": 90,
        "llm:model:acme:big:output_tpm": 30,
    }


async def test_a_call_without_an_estimate_can_still_be_settled(world: Runtime) -> None:
    llm_rate_limit("acme", tpm=1000)

    async with llm_slot("acme") as slot:
        assert await slot.settle(input_tokens=300, output_tokens=50)

    assert await used(world) == {"llm:provider:acme:tpm": 350}


async def test_an_unlimited_provider_never_waits(world: Runtime) -> None:
    for _ in range(50):
        async with llm_slot("acme", "big", input_tokens=10**6) as slot:
            assert not await slot.settle(input_tokens=5)


async def test_the_seat_comes_before_the_quota(world: Runtime, clock: FakeClock) -> None:
    llm_rate_limit("acme", rpm=10, concurrency=1)
    async with llm_slot("acme"):
        waiting = spawn(enter_and_leave("acme"))
        await clock.settle()

        assert await used(world) == {"llm:provider:acme:rpm": 1}
        assert not waiting.done()
    await waiting
    assert await used(world) == {"llm:provider:acme:rpm": 2}


async def enter_and_leave(provider: str, model: str | None = None) -> None:
    async with llm_slot(provider, model):
        pass


async def test_call_slots_are_granted_in_order_and_their_number_may_change(
    world: Runtime, clock: FakeClock
) -> None:
    llm_rate_limit("acme", concurrency=1)
    inside: list[int] = []
    leave = asyncio.Event()

    async def one(number: int) -> None:
        async with llm_slot("acme"):
            inside.append(number)
            await leave.wait()

    tasks = [spawn(one(number)) for number in range(4)]
    await clock.settle()
    assert inside == [0]

    llm_rate_limit("acme", concurrency=3)
    tasks.append(spawn(one(4)))
    await clock.settle()
    assert inside == [0, 1, 2]

    leave.set()
    await asyncio.gather(*tasks)
    assert inside == [0, 1, 2, 3, 4]


async def test_wherever_it_is_cancelled_a_slot_releases_its_call_slot_and_quota(
    world: Runtime,
) -> None:
    fake_clock(world).autojump = True
    llm_rate_limit("acme", rpm=1, concurrency=1)
    entered: list[int] = []

    async def case() -> None:
        for _ in range(2):
            async with llm_slot("acme"):
                entered.append(fake_clock(world).now_ms())

    async def all_is_free(run: Run) -> None:
        slots = world.service(CallSlotsByRoute).of("llm:provider:acme")
        assert (slots.taken, slots.waiting.first()) == (0, None), run
        live = bool(entered) and fake_clock(world).now_ms() < entered[-1] + 60_000
        assert (await used(world)).get("llm:provider:acme:rpm", 0) == live, run
        await fake_clock(world).advance("60s")
        entered.clear()

    assert await sweep(case, all_is_free) > 4


async def test_too_long_a_wait_for_quota_is_an_error_that_says_when(
    monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_MAX_WAIT_MS", "2000")
    async with fresh_runtime(clock=clock):
        llm_rate_limit("acme", rpm=1)
        await enter_and_leave("acme")
        waiting = spawn(enter_and_leave("acme", "big"))
        await clock.advance("2s")

        with pytest.raises(RateLimitError, match=r"no quota for acme/big within 2000 ms.*58000 ms"):
            await waiting


async def test_retry_after_keeps_every_caller_from_the_route(
    tmp_path: Path, clock: FakeClock
) -> None:
    async with fresh_runtime(clock=clock, state_dir=tmp_path):
        async with llm_slot("acme", "big") as slot:
            assert await slot.retry_after("30") == 30.0
            assert await slot.retry_after(10) == 10.0  # the longer one stays

    async with fresh_runtime(clock=clock, state_dir=tmp_path):
        waiting = spawn(enter_and_leave("acme", "big"))
        await enter_and_leave("acme", "small")
        await clock.advance("29s")
        assert not waiting.done()
        await clock.advance("1s")
        assert waiting.done()


async def test_an_error_that_leaves_the_block_is_learned_from(
    world: Runtime, clock: FakeClock
) -> None:
    with pytest.raises(ApiError):
        async with llm_slot("acme"):
            raise ApiError(429, {"Retry-After": "5"})
    with pytest.raises(ApiError):
        async with llm_slot("beta"):
            raise ApiError(400, {"Retry-After": "5"})

    waiting = spawn(enter_and_leave("acme"))
    await enter_and_leave("beta")
    await clock.advance("4s")
    assert not waiting.done()
    await clock.advance("1s")
    assert waiting.done()


async def test_feedback_reads_every_answer_but_obeys_retry_after_only_of_refusals(
    world: Runtime,
) -> None:
    async with llm_slot("acme") as slot:
        assert await slot.feedback(None) is None
        assert await slot.feedback({"retry-after": "9"}, status=200) is None
        assert await slot.feedback({"llm_provider-retry-after": "9"}, status=200) is None
        assert await slot.feedback({"retry-after": "9"}, status=429) == 9.0
        spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m1s"}
        assert await slot.feedback(spent, status=200) == 61.0


async def test_an_hour_is_the_longest_pause(world: Runtime) -> None:
    async with llm_slot("acme") as slot:
        assert await slot.retry_after(10**9) == 3600.0
        assert await slot.retry_after(1e308) == 3600.0


async def test_a_slot_is_entered_once_and_used_inside(world: Runtime) -> None:
    slot = llm_slot("acme")
    with pytest.raises(HarnError, match="not been entered"):
        await slot.retry_after(5)
    async with slot:
        pass
    with pytest.raises(HarnError, match="once"):
        async with slot:
            pass


@pytest.mark.parametrize("options", [{"input_tokens": -1}, {"output_tokens": 1.5}, {"model": ""}])
async def test_a_slot_refuses_what_makes_no_sense(world: Runtime, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        llm_slot("acme", **options)


async def test_without_durability_limits_stay_in_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_DURABLE", "off")
    async with Runtime(state_dir=tmp_path / "state"):
        llm_rate_limit("acme", rpm=5)
        await enter_and_leave("acme")
    assert not (tmp_path / "state").exists()


async def test_model_calls_have_a_file_of_their_own_or_the_one_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    async with Runtime(state_dir="state"):
        await enter_and_leave("acme")
    assert (tmp_path / "state" / "llm-rate-limits.sqlite").exists()

    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_STATE_PATH", "fleet.sqlite")
    async with Runtime(state_dir="state"):
        await enter_and_leave("acme")
    assert (tmp_path / "fleet.sqlite").exists()


@pytest.mark.parametrize(
    ("hint", "seconds"),
    [
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(minutes=1), 60.0),
        ("17", 17.0),
        ("250ms", 0.25),
        ("6m0s", 360.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2015 00:00:30 GMT", 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"Retry-After": "nonsense"}, None),
        ({"Retry-After": "9" * 400 + "s"}, None),
        ({"llm_provider-retry-after": "4"}, 4.0),
        ({"llm_provider-Retry-After-Ms": "2500"}, 2.5),
        ({"retry-after": "3", "llm_provider-retry-after": "4"}, 3.0),
        (
            {
                "llm_provider-x-ratelimit-remaining-tokens": "0",
                "llm_provider-x-ratelimit-reset-tokens": "6m0s",
            },
            360.0,
        ),
        ({}, None),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "9s"}, None),
        ({"X-RateLimit-Remaining-Tokens": "0", "X-RateLimit-Reset-Tokens": "9s"}, 9.0),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:20Z",
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:07Z",
            },
            20.0,
        ),
        (ApiError(429, {"Retry-After": "3"}), 3.0),
        (object(), None),
    ],
)
def test_a_hint_is_read_in_every_form(hint: Any, seconds: float | None) -> None:
    assert wait_in(hint, NOW) == seconds


HUGE = [pytest.param(10**400, id="huge"), pytest.param("9" * 400 + "s", id="huge text")]


@pytest.mark.parametrize("hint", ["soon", -1, float("nan"), float("inf"), *HUGE])
def test_a_hint_that_makes_no_sense_is_refused(hint: Any) -> None:
    with pytest.raises(InvalidOption):
        wait_in(hint, NOW)


ReadTimeout = type("ReadTimeout", (type("TimeoutException", (Exception,), {}),), {})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ApiError(429), True),
        (ApiError(529), True),
        (ApiError(503), True),
        (ApiError(400), False),
        (ApiError(500), False),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (ReadTimeout(), True),
        (ValueError(), False),
        (asyncio.CancelledError(), False),
        (KeyboardInterrupt(), False),
        (DeadlineExceeded(), False),
        (RateLimitError("x"), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: Any, again: bool) -> None:
    assert is_retryable(error) is again


async def test_with_rate_limit_tries_again_and_doubles_its_pause(world: Runtime) -> None:
    fake_clock(world).autojump = True
    calls: list[int] = []

    async def ask() -> str:
        calls.append(fake_clock(world).now_ms() - NOW)
        if len(calls) < 4:
            raise ConnectionResetError
        return "done"

    assert await with_rate_limit("acme", ask, backoff_ms=100) == "done"
    assert calls == [0, 100, 300, 700]


async def test_with_rate_limit_waits_as_long_as_the_provider_asked(world: Runtime) -> None:
    fake_clock(world).autojump = True
    calls: list[int] = []

    async def ask() -> str:
        calls.append(fake_clock(world).now_ms() - NOW)
        if len(calls) < 2:
            raise ApiError(429, {"retry-after": "7"})
        return "done"

    assert await with_rate_limit("acme", ask) == "done"
    assert calls == [0, 7000]


async def test_with_rate_limit_gives_up_with_the_last_error(world: Runtime) -> None:
    fake_clock(world).autojump = True
    calls = 0

    async def ask() -> None:
        nonlocal calls
        calls += 1
        raise ApiError(503)

    with pytest.raises(ApiError, match="503"):
        await with_rate_limit("acme", ask, max_retries=2)
    assert calls == 3


async def test_with_rate_limit_takes_quota_for_every_call(world: Runtime) -> None:
    llm_rate_limit("acme", rpm=5)

    assert await with_rate_limit("acme", lambda: "plain functions run on a thread") is not None

    assert await used(world) == {"llm:provider:acme:rpm": 1}


@pytest.mark.parametrize(
    "options", [{"max_retries": -1}, {"max_retries": True}, {"backoff_ms": -1}]
)
async def test_with_rate_limit_refuses_what_makes_no_sense(
    world: Runtime, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption):
        await with_rate_limit("acme", lambda: None, **options)


async def test_a_cancelled_with_rate_limit_is_not_retried(clock: FakeClock) -> None:
    async with fresh_runtime(clock=clock):
        calls = 0

        async def ask() -> None:
            nonlocal calls
            calls += 1
            await asyncio.Event().wait()

        task = spawn(with_rate_limit("acme", ask))
        await clock.settle()
        task.cancel()
        await clock.advance("1m")

        assert task.cancelled()
        assert calls == 1
