"""Waitpoints: settled once, waited for by many, a timeout is a value."""

from __future__ import annotations

import asyncio
from pathlib import Path

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


@pytest.fixture(params=["sqlite", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = "events.sqlite" if request.param == "sqlite" else "log"
    return f"{request.param}:///{tmp_path / name}"


async def test_with_a_store_it_stays_settled_after_a_restart(storage: str) -> None:
    async with Runtime(storage=storage):
        assert (await waitpoint_wait("w", timeout=0)).status == "timed_out"
        assert await waitpoint_complete("w", {"n": 1}) is True
        assert await waitpoint_cancel("w") is False

    async with Runtime(storage=storage):
        assert await waitpoint_wait("w", timeout=0) == Waitpoint("completed", {"n": 1})
        assert await waitpoint_wait("w") == Waitpoint("completed", {"n": 1})
        assert await waitpoint_complete("w", 2) is False


async def test_with_a_store_another_runtime_wakes_the_waiters(storage: str) -> None:
    async with Runtime(storage=storage) as one:
        waits = [spawn(waitpoint_wait, "w / odd name") for _ in range(3)]
        await settle()

        async with Runtime(storage=storage):
            assert await waitpoint_cancel("w / odd name", "elsewhere") is True

        for each in waits:
            assert await each == Waitpoint("cancelled", reason="elsewhere")
        await settle()
        assert not one.service(Waitpoints)._watchers


async def test_with_a_store_one_of_many_wins(storage: str) -> None:
    async def settle_from_a_runtime_of_its_own(n: int) -> bool:
        async with Runtime(storage=storage):
            return await waitpoint_complete("w", n)

    won = await asyncio.gather(*(settle_from_a_runtime_of_its_own(n) for n in range(4)))

    assert sum(won) == 1
    async with Runtime(storage=storage):
        assert (await waitpoint_wait("w")).value == won.index(True)


async def test_with_a_store_the_last_waiter_to_leave_ends_the_watching(tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path / 'events.sqlite'}") as runtime:
        service = runtime.service(Waitpoints)
        assert (await waitpoint_wait("w", timeout="10ms")).status == "timed_out"
        waiting = asyncio.ensure_future(waitpoint_wait("w"))
        await settle()
        assert service._watchers

        waiting.cancel()
        await asyncio.wait([waiting])
        while service._watchers:
            await asyncio.sleep(0)

        assert not service._waiting


async def test_with_a_store_a_value_must_be_json(tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path / 'events.sqlite'}"):
        with pytest.raises(InvalidOption):
            await waitpoint_complete("w", object())
        assert await waitpoint_complete("w", [1, 2]) is True


async def test_a_reason_is_text(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match="reason"):
        await waitpoint_cancel("w", 5)  # type: ignore[arg-type]
