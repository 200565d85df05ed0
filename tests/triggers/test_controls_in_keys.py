"""Control characters in what names a delivery: refused at the door, the same on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harn import (
    InvalidOption,
    Runtime,
    TriggerEvent,
    channel_emit,
    event_log_emit,
    trigger_fire,
    trigger_register,
    worker_queue,
)
from harn.triggers import Triggers

CONTROLS = ["\0", "\n", "\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\ud800"]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
async def test_an_id_with_a_control_is_refused_at_the_call(control: str, storage_url: str) -> None:
    async with Runtime(storage=storage_url):
        await register(lambda event: None)
        with pytest.raises(InvalidOption, match=r"^id="):
            await channel_emit("news", {}, id=f"a{control}b")
        with pytest.raises(InvalidOption, match=r"^(dedupe_key|payload)="):
            await channel_emit("news", {"key": f"a{control}b"})
        for field in ("dedupe_key", "trace_id"):
            fields: Any = {field: f"a{control}b"}
            with pytest.raises(InvalidOption, match=f"^{field}="):
                await trigger_fire("t", {"key": "k"}, **fields)
        with pytest.raises(InvalidOption, match=r"^dedupe_key="):
            await worker_queue("q").enqueue({}, dedupe_key=f"a{control}b")


async def test_other_characters_name_a_delivery_as_they_are(storage_url: str) -> None:
    async with Runtime(storage=storage_url):
        await register(lambda event: None)
        emitted = [await channel_emit("news", {}, id="grüße, 世界: 100% ") for _ in range(2)]
        jobs = [await worker_queue("q").enqueue({}, dedupe_key="a:b %") for _ in range(2)]

    assert [receipt.duplicate for receipt in emitted] == [False, True]
    assert [receipt.duplicate for receipt in jobs] == [False, True]


async def test_a_record_with_such_a_key_does_not_hold_up_its_topic(storage_url: str) -> None:
    seen: list[Any] = []
    async with Runtime(storage=storage_url) as runtime:
        await register(lambda event: seen.append(event), kind="stream")
        while await runtime.service(Triggers).sources._last("stream:t") is None:
            await asyncio.sleep(0.01)
        await event_log_emit("orders", "order", {"key": "a\0b"})
        await event_log_emit("orders", "order", {"key": "fine"})
        while not seen:
            await asyncio.sleep(0.01)
        await runtime.service(Triggers).dispatcher.idle()

    assert [event.get("provider_payload.payload.key") for event in seen] == ["fine"]


async def register(handler: Any, kind: Any = "channel.emit") -> None:
    async def call(event: TriggerEvent) -> None:
        handler(event)

    stream = kind == "stream"
    await trigger_register(
        id="t",
        kind=kind,
        provider="stream" if stream else "channel",
        match={"topic": "orders"} if stream else {"events": ["channel:news"]},
        handler=call,
        dedupe_key="provider_payload.payload.key",
    )
