"""Triggers: what it costs to write an event down, dispatch it and settle it.

**Emit to a function** goes the whole way: matched, written into the inbox, dispatched, its outcome
and receipt written. In memory there is no disk; on SQLite every emit waits for two commits that are
synced, one before the handler and one after, so the second figure, with 200 emits under way that
share commits, is what a service sees. **Verify** is one GitHub signature over 1 KiB. There is no
peer in Python that does the same thing; a bare `await handler(event)` stands beside it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from typing import Any

from bench.harness import Contest, Contestant, timed, timed_async
from harn import Runtime, TriggerEvent, channel_emit, trigger_register
from harn.triggers import sign, verify

SUBJECT = "triggers: emit, dispatch, verify"
N = 1000
SECRET = b"a secret for the benchmark"
GOALS: tuple[()] = ()


async def handler(event: TriggerEvent) -> None:
    pass


async def register(**flow: Any) -> None:
    await trigger_register(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=handler,
        **flow,
    )


async def bare(n: int) -> None:
    event = TriggerEvent(
        id="e",
        provider="channel",
        kind="channel.emit",
        received_at="2026-01-01T00:00:00Z",
        occurred_at="2026-01-01T00:00:00Z",
    )
    for _ in range(n):
        await handler(event)


async def in_memory(n: int, **flow: Any) -> None:
    async with Runtime():
        await register(**flow)
        for number in range(n):
            await channel_emit("x", number)


async def on_disk(n: int, together: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with Runtime(state_dir=directory):
            await register()
            for start in range(0, n, together):
                await asyncio.gather(*(channel_emit("x", start + k) for k in range(together)))


def check(n: int) -> None:
    body = b"x" * 1024
    headers = {name: [value] for name, value in sign("github", SECRET, body, 0).items()}
    for _ in range(n):
        verify("github", [SECRET], headers, body, 0)


def contests() -> Iterable[Contest]:
    """Return what is measured."""
    yield Contest(
        "emit to a function, end to end",
        (
            Contestant("bare await", timed_async(bare, 100_000)),
            Contestant("memory", timed_async(in_memory, N)),
            Contestant(
                "memory, with a slot to take",
                timed_async(lambda n: in_memory(n, concurrency={"max": 4}), N),
            ),
            Contestant("SQLite, one at a time", timed_async(lambda n: on_disk(n, 1), 300)),
            Contestant("SQLite, 200 under way", timed_async(lambda n: on_disk(n, 200), N)),
        ),
    )
    yield Contest("verify a signature", (Contestant("github, 1 KiB", timed(check, 20_000)),))
