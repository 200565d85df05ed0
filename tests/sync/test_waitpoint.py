"""Waitpoints: settled once, waited for by many, a timeout is a value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

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
from harn.sync.wait_queue import WAITING
from harn.sync.waitpoint import Waitpoints
from harn.testing import FakeClock
from harn.topics import waitpoint_topic
from tests.sweep import Run, sweep


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


async def test_with_a_store_it_stays_settled_after_a_restart(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url):
        assert (await waitpoint_wait("w", timeout=0)).status == "timed_out"
        assert await waitpoint_complete("w", {"n": 1}) is True
        assert await waitpoint_cancel("w") is False

    async with Runtime(storage=lasting_url):
        assert await waitpoint_wait("w", timeout=0) == Waitpoint("completed", {"n": 1})
        assert await waitpoint_wait("w") == Waitpoint("completed", {"n": 1})
        assert await waitpoint_complete("w", 2) is False


async def test_with_a_store_another_runtime_wakes_the_waiters(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as one:
        waits = [spawn(waitpoint_wait, "w / odd name") for _ in range(3)]
        await settle()

        async with Runtime(storage=lasting_url):
            assert await waitpoint_cancel("w / odd name", "elsewhere") is True

        for each in waits:
            assert await each == Waitpoint("cancelled", reason="elsewhere")
        await settle()
        assert not one.service(Waitpoints)._watchers


async def test_with_a_store_one_of_many_wins(lasting_url: str) -> None:
    async def settle_from_a_runtime_of_its_own(n: int) -> bool:
        async with Runtime(storage=lasting_url):
            return await waitpoint_complete("w", n)

    won = await asyncio.gather(*(settle_from_a_runtime_of_its_own(n) for n in range(4)))

    assert sum(won) == 1
    async with Runtime(storage=lasting_url):
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


async def test_G7_with_a_store_a_cancelled_wait_leaves_the_others_waiting(lasting_url: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        service = runtime.service(Waitpoints)
        patient = asyncio.ensure_future(waitpoint_wait("w"))
        await settle()  # from here on one task follows the waitpoint for all of them

        async def case() -> Waitpoint:
            return await waitpoint_wait("w", "2ms")

        def check(run: Run) -> None:
            line = service._waiting["w"]
            assert [each.state for each in line if each.state == WAITING] == [WAITING]
            assert len(service._watchers) == 1

        assert await sweep(case, check) >= 4
        assert await waitpoint_complete("w", 1) is True
        assert (await patient).value == 1


@pytest.mark.parametrize("verb", [waitpoint_complete, waitpoint_cancel])
async def test_G7_with_a_store_a_cancelled_settling_happened_or_did_not(
    lasting_url: str, verb: Callable[[str, str], Coroutine[Any, Any, bool]]
) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        runs = 0

        async def case() -> None:
            nonlocal runs
            runs += 1
            await verb(f"w{runs}", "first")

        async def check(run: Run) -> None:
            won = await verb(f"w{runs}", "second")
            found = await waitpoint_wait(f"w{runs}", "1m")
            assert (found.value or found.reason) == ("second" if won else "first")
            assert won or not run.cancelled or run.k > 1
            stored = await runtime.event_log.read(waitpoint_topic(f"w{runs}"))
            assert stored[0].payload["value" if verb is waitpoint_complete else "reason"] == (
                "second" if won else "first"
            )

        assert await sweep(case, check) >= 5
        assert not runtime.service(Waitpoints)._waiting
