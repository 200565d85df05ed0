"""Renewing the claims that handlers work on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harn import Runtime, StorageBusy, worker_queue
from harn.storage import Store
from harn.testing import FakeClock
from harn.workers.claim_renewal import ClaimRenewal
from harn.workers.held_claim import Claim


async def claim_one() -> Claim:
    queue = worker_queue("q")
    await queue.enqueue("job")
    claim = await queue.claim_next("us", ttl="1m")
    assert claim is not None
    return claim


async def test_a_claim_after_a_time_without_any_is_renewed_too(
    runtime: Runtime, clock: FakeClock
) -> None:
    renewal = runtime.service(ClaimRenewal)
    lost: list[str] = []
    first = await claim_one()
    renewal.hold(first, lost.append)
    await first.ack()
    renewal.let_go(first)
    await clock.advance("10m")  # nothing is held, so nothing is looked at

    renewal.hold(await claim_one(), lost.append)
    await clock.advance("10m")

    assert await worker_queue("q").claim_next("a rival") is None
    assert not lost


async def test_nothing_is_asked_of_the_store_while_no_claim_is_held(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewal = runtime.service(ClaimRenewal)
    claim = await claim_one()
    renewal.hold(claim, print)
    renewal.let_go(claim)
    store = runtime.service(Store)
    monkeypatch.setattr(store, "run", None)  # a call would be an error in the log

    await clock.advance("1h")

    assert not [timer for timer in clock._timers if timer.wake is not None]


@pytest.mark.parametrize("answer", ["an error", "none"])
async def test_a_claim_is_lost_before_it_expires_when_the_store_is_out_of_reach(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    lost: list[str] = []
    runtime.service(ClaimRenewal).hold(await claim_one(), lost.append)

    async def out_of_reach(*args: Any, **options: Any) -> None:
        if answer == "an error":
            raise StorageBusy("out of reach")
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(runtime.service(Store), "run", out_of_reach)
    await clock.advance("53s")
    assert not lost
    await clock.advance("7s")

    assert lost == ["it could not be renewed in time"]


async def test_a_store_that_comes_back_in_time_keeps_the_claim(
    runtime: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    runtime.service(ClaimRenewal).hold(await claim_one(), lost.append)
    store = runtime.service(Store)
    run = store.run

    async def out_of_reach(*args: Any, **options: Any) -> None:
        raise StorageBusy("out of reach")

    monkeypatch.setattr(store, "run", out_of_reach)
    await clock.advance("50s")
    monkeypatch.setattr(store, "run", run)
    await clock.advance("1h")

    assert not lost
    assert await worker_queue("q").claim_next("a rival") is None
