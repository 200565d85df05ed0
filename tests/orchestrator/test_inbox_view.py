"""`queue ls --json` agrees with the dispatcher, on every engine."""

from __future__ import annotations

import asyncio
from typing import Any

from harn import Runtime, trigger_fire, trigger_register
from harn.orchestrator import queues_view
from harn.testing import FakeClock
from harn.triggers import Repetitions


async def test_the_dispatcher_block_follows_an_event_from_intake_to_its_end(
    storage_url: str,
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def handler(event: Any) -> str:
        begun.set()
        await release.wait()
        raise ValueError("not yet")

    async with Runtime(storage=storage_url, clock=FakeClock()) as runtime:
        await trigger_register(
            id="slow",
            kind="channel.emit",
            provider="channel",
            match={"events": ["channel:slow"]},
            handler=handler,
            retry={"max": 2, "backoff": "svix"},
        )
        before = (await queues_view(runtime))["dispatcher"]
        firing = asyncio.ensure_future(trigger_fire("slow", {"n": 1}))
        await begun.wait()
        during = (await queues_view(runtime))["dispatcher"]
        release.set()
        while not (retrying := (await queues_view(runtime))["dispatcher"])["pending_retries"]:
            await asyncio.sleep(0)
        firing.cancel()
        await asyncio.wait((firing,))
        assert runtime.service(Repetitions).refused == 0

    assert before["inferred_in_flight"] == 0
    assert during["inferred_in_flight"] == 1
    assert during["in_flight_dispatches"][0]["trigger_id"] == "slow"
    assert during["inbox_envelopes_written"] == before["inbox_envelopes_written"] + 1
    assert retrying["inferred_pending_retries"] == 1
    assert retrying["pending_retries"][0]["attempt"] >= 1
