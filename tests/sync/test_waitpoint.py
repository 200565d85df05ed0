"""Waitpoints: settled once, waited for by many, a timeout is a value."""

from __future__ import annotations

import asyncio

import pytest

from harn import (
    InvalidOption,
    Runtime,
    Waitpoint,
    spawn,
    waitpoint_cancel,
    waitpoint_complete,
    waitpoint_wait,
)
from harn.sync.waitpoint import Waitpoints
from harn.testing import FakeClock


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_many_wait_and_all_get_the_value(runtime: Runtime) -> None:
    waits = [spawn(waitpoint_wait, "w") for _ in range(5)]
    await settle()

    assert await waitpoint_complete("w", {"by": "hand"}) is True

    assert {id(await each) for each in waits} == {id(await waitpoint_wait("w"))}
    assert (await waits[0]).value == {"by": "hand"}


async def test_the_first_to_settle_wins(runtime: Runtime) -> None:
    assert await waitpoint_cancel("w", "shutting down") is True
    assert await waitpoint_complete("w", 1) is False
    assert await waitpoint_cancel("w") is False

    found = await waitpoint_wait("w")
    assert found == Waitpoint("cancelled", reason="shutting down")
    assert found.as_dict() == {"status": "cancelled", "reason": "shutting down"}


async def test_a_timeout_is_a_value(runtime: Runtime, clock: FakeClock) -> None:
    waiting = asyncio.ensure_future(waitpoint_wait("w", timeout="1h"))
    await settle()

    await clock.advance("1h")

    assert (await waiting).status == "timed_out"
    assert (await waitpoint_wait("w", timeout=0)).status == "timed_out"
    assert not runtime.service(Waitpoints)._waiting
    assert await waitpoint_complete("w") is True


async def test_completed_earlier_returns_at_once(runtime: Runtime) -> None:
    await waitpoint_complete("w", 7)

    assert await waitpoint_wait("w", timeout=0) == Waitpoint("completed", 7)


@pytest.mark.parametrize("id", ["", None, 3])
async def test_an_id_is_a_string(runtime: Runtime, id: str) -> None:
    for call in (waitpoint_wait, waitpoint_complete, waitpoint_cancel):
        with pytest.raises(InvalidOption, match="id"):
            await call(id)
