"""Budgets of tenants: a call that does not fit is refused, or waits, before it is sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harn import (
    InvalidOption,
    ManifestError,
    RateLimitError,
    Runtime,
    llm_budget,
    llm_price,
    llm_rate_limit,
    llm_slot,
    scope,
    spawn,
)
from harn.current import current_frame
from harn.ratelimit import Budget
from harn.testing import fresh_runtime
from tests.fake_clock import fake_clock


@contextlib.asynccontextmanager
async def tenant(name: str) -> AsyncIterator[None]:
    """Make the calls of the block those of tenant *name*."""
    task = current_frame().task
    before = task.ambient
    task.ambient = msgspec.structs.replace(before, tenant_id=name)
    try:
        yield
    finally:
        task.ambient = before


async def call(name: str, reserved: int, used: int | None = None) -> None:
    half = reserved // 2
    async with tenant(name), llm_slot("p", "m", reserved - half, half) as slot:
        if used is not None:
            await slot.settle(input_tokens=used, output_tokens=0)


async def test_a_call_that_does_not_fit_is_refused_by_name(world: Runtime) -> None:
    llm_budget("acme", tokens=100)
    await call("acme", 80)

    with pytest.raises(RateLimitError) as refused:
        await call("acme", 30)

    text = str(refused.value)
    for part in ("tenant 'acme'", "100 tokens in any 1d", "30 tokens", "in 1d", "llm_budget()"):
        assert part in text
    assert refused.value.retry_after_ms == 86_400_000
    assert "2026-01-02T00:00:00" in text
    await call("zeta", 500)
    await fake_clock(world).advance("1d")
    await call("acme", 30)


async def test_what_was_not_used_is_free_again_at_once(world: Runtime) -> None:
    llm_budget("acme", tokens=100)

    for _ in range(5):
        await call("acme", 60, used=10)

    with pytest.raises(RateLimitError):
        await call("acme", 60)
    await call("acme", 50)


async def test_a_call_larger_than_the_budget_needs_an_unused_one() -> None:
    async with fresh_runtime():
        llm_budget("acme", tokens=100)
        await call("acme", 5000, used=10)

        with pytest.raises(RateLimitError):
            await call("acme", 5000)


async def test_a_budget_in_dollars_counts_what_calls_cost(world: Runtime) -> None:
    llm_price("p", "m", input_usd_per_million=10, output_usd_per_million=30)
    llm_budget("acme", usd=0.002, window="1h")
    await call("acme", 100, used=100)  # 0.001 USD

    with pytest.raises(RateLimitError, match=r"0.002 USD in any 1h.*may use 0\.002 USD"):
        await call("acme", 100)
    await call("acme", 50)


async def test_dollars_need_a_price() -> None:
    async with fresh_runtime():
        llm_budget("acme", usd=1)

        with pytest.raises(RateLimitError, match="price of p/m is not known: set it"):
            await call("acme", 10)


async def test_both_limits_of_a_budget_hold() -> None:
    async with fresh_runtime():
        llm_price("p", "m", input_usd_per_million=1, output_usd_per_million=1)
        llm_budget("acme", usd=1, tokens=100)
        await call("acme", 100, used=100)

        with pytest.raises(RateLimitError, match="1 USD and 100 tokens"):
            await call("acme", 1)


async def test_a_call_may_wait_for_its_budget(world: Runtime) -> None:
    llm_budget("acme", tokens=100, window="1m", on_spent="wait")
    await call("acme", 100, used=100)
    waiting = spawn(call, "acme", 50)
    await fake_clock(world).advance("59s")
    assert not waiting.done()

    await fake_clock(world).advance("2s")

    await waiting


async def test_a_tenant_that_waits_for_its_budget_holds_up_no_other(world: Runtime) -> None:
    llm_rate_limit("p", rpm=600)
    llm_budget("acme", tokens=100, window="1h", on_spent="wait")
    await call("acme", 100, used=100)
    waiting = spawn(call, "acme", 50)
    await fake_clock(world).advance("1s")

    await call("zeta", 50)

    assert not waiting.done()
    waiting.cancel()


async def test_a_raised_or_lowered_budget_holds_at_once(world: Runtime) -> None:
    llm_budget("acme", tokens=100)
    await call("acme", 100, used=100)
    llm_budget("acme", tokens=200)
    await call("acme", 50, used=50)
    llm_budget("acme", tokens=120)

    with pytest.raises(RateLimitError):
        await call("acme", 10)
    llm_budget("acme", tokens=200)
    await call("acme", 50)
    with pytest.raises(RateLimitError):
        await call("acme", 1)


async def test_a_call_that_gets_no_quota_leaves_its_budget(world: Runtime) -> None:
    llm_rate_limit("p", rpm=1)
    llm_budget("acme", tokens=100)
    await call("zeta", 1)
    waiting = spawn(call, "acme", 100)
    await fake_clock(world).advance("1s")
    with pytest.raises(RateLimitError):
        await call("acme", 1)  # the waiting call has reserved everything

    waiting.cancel()
    await waiting._join()

    await fake_clock(world).advance("1m")
    await call("acme", 100)


async def test_calls_without_a_tenant_can_have_a_budget() -> None:
    async with fresh_runtime():
        llm_budget(None, tokens=10)
        async with llm_slot("p", "m", input_tokens=10):
            pass
        with pytest.raises(RateLimitError, match="calls without a tenant"):
            async with llm_slot("p", "m", input_tokens=10):
                pass
        await call("acme", 10)


async def test_a_budget_is_returned_when_no_limits_are_given() -> None:
    async with fresh_runtime():
        assert llm_budget("acme") is None
        given = llm_budget("acme", usd=5, tokens=10, window="2h", on_spent="wait")

        assert given == llm_budget("acme") == Budget("acme", 5.0, 10, 7_200_000, "wait")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"usd": 0}, "usd"),
        ({"usd": -1}, "usd"),
        ({"usd": True}, "usd"),
        ({"usd": float("nan")}, "usd"),
        ({"usd": "5"}, "usd"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({"tokens": 1, "window": 0}, "window"),
        ({"tokens": 1, "window": "soon"}, "window"),
        ({"tokens": 1, "on_spent": "weep"}, "on_spent"),
    ],
)
async def test_bad_budgets_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    async with fresh_runtime():
        with pytest.raises(InvalidOption, match=named):
            llm_budget("acme", **options)
        with pytest.raises(InvalidOption, match="tenant_id"):
            llm_budget(" ", tokens=1)


async def test_budgets_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("harn.toml").write_text('[budgets.acme]\nusd = 2\nwindow = "1h"\non_spent = "wait"\n')

    async with fresh_runtime():
        assert llm_budget("acme") == Budget("acme", 2.0, None, 3_600_000, "wait")
        assert llm_budget("zeta") is None


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("usd = 0", "usd"),
        ("dollars = 5", "unknown key 'dollars'"),
        ('window = "1d"', "needs usd or tokens"),
        ('tokens = 5\non_spent = "weep"', "on_spent"),
    ],
)
async def test_a_mistake_in_the_file_is_named(
    table: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("providers.toml").write_text(f"[budgets.acme]\n{table}\n")

    async with fresh_runtime():
        with pytest.raises(ManifestError, match=said):
            llm_budget("acme")


async def test_many_calls_at_once_never_reserve_more_than_the_budget(world: Runtime) -> None:
    llm_budget("acme", tokens=1000)
    outcomes: list[bool] = []
    most = under_way = 0

    async def one() -> None:
        nonlocal most, under_way
        try:
            async with tenant("acme"), llm_slot("p", "m", input_tokens=300) as slot:
                under_way += 1
                most = max(most, under_way)
                await asyncio.sleep(0)
                await slot.settle(input_tokens=100)
                under_way -= 1
                outcomes.append(True)
        except RateLimitError:
            outcomes.append(False)

    async with scope():
        for _ in range(40):
            spawn(one)

    assert most <= 3
    assert outcomes.count(True) <= 10
    assert outcomes.count(True) >= 3
