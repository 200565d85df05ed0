"""Trace five walks through the house: how many calls, files and rooms an ordinary use passes.

    python -m tools.walks                    # memory, SQLite, the limiter's file
    python -m tools.walks --postgres URL     # PostgreSQL too
    python -m tools.walks --calls enqueue    # list every call of the walks named so

A call is an entry into a Python function of harn; resuming a coroutine is not one. A room change
is a call whose room (its top folder, or its file in the ground) differs from that of the call
before it on the same thread. An inner change stays in its room and goes to another folder of it,
such as from `storage/queue` to `storage/engines/sqlite`. Each walk runs a few times first, so that
nothing counts that happens once.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import harn
from harn import Runtime, durable_rate_limit_acquire, pool_create, trigger_register, worker_queue
from harn.orchestrator import Hook, Intake, Key
from harn.triggers import SpawnToPool, TriggerEvent, Triggers, sign

HOUSE = str(Path(harn.__file__).parent) + "/"
SECRET = b"a secret for the walk, long enough"
WARM_UP = 5


@dataclass
class Walk:
    """The calls that one use made."""

    name: str
    calls: list[tuple[int, str, str]] = field(default_factory=list)
    """Thread, file below the package, and function of each, in order."""

    def row(self) -> tuple[str, int, int, int, int, int]:
        """Return the name, and how many there were of each column of the table."""
        files = {file for _, file, _ in self.calls}
        threads = {thread for thread, _, _ in self.calls}
        rooms = self._changes(lambda file: file.partition("/")[0])
        inner = self._changes(lambda file: file.rpartition("/")[0] or file) - rooms
        return self.name, len(self.calls), len(files), rooms, inner, len(threads)

    def _changes(self, room_of: Callable[[str], str]) -> int:
        changes, last = 0, dict[int, str]()
        for thread, file, _ in self.calls:
            room = room_of(file)
            changes += last.get(thread, room) != room
            last[thread] = room
        return changes


class Tracer:
    """Notes calls into harn, on every thread that starts after it, while a walk is on."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        sys.setprofile(self._note)
        threading.setprofile(self._note)

    @contextmanager
    def on(self, walk: Walk) -> Iterator[None]:
        """Note the calls of the block as *walk*'s."""
        self._walk = walk
        try:
            yield
        finally:
            self._walk = None

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        walk, code = self._walk, frame.f_code
        if walk is None or event != "call" or not code.co_filename.startswith(HOUSE):
            return
        if frame.f_lasti == _start(code):
            file = code.co_filename[len(HOUSE) :]
            walk.calls.append((threading.get_ident(), file, code.co_qualname))


@cache
def _start(code: CodeType) -> int:
    """Return the offset at which a new call of *code* begins; a resumed one is further on."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


async def _walk(tracer: Tracer, name: str, use: Callable[[], Awaitable[Any]]) -> Walk:
    for _ in range(WARM_UP):
        await use()
    walk = Walk(name)
    with tracer.on(walk):
        await use()
    return walk


async def pool_walk(tracer: Tracer) -> list[Walk]:
    """`pool.submit` to its result, in memory."""

    async def nothing() -> None:
        return None

    async with Runtime():
        pool = await pool_create(name="walk", max_concurrent=4)

        async def use() -> None:
            await (await pool.submit(nothing))

        return [await _walk(tracer, "pool submit to result", use)]


async def queue_walks(tracer: Tracer, storage: str, engine: str) -> list[Walk]:
    """Enqueue, claim and ack of one job."""
    async with Runtime(storage=storage):
        queue = worker_queue("walk")
        claims: list[Any] = []

        async def enqueue() -> None:
            await queue.enqueue({"n": 1}, tenant_id="acme")

        async def claim() -> None:
            claims.append(await queue.claim_next("walker"))

        async def ack() -> None:
            await claims.pop().ack()

        return [
            await _walk(tracer, f"{engine} enqueue", enqueue),
            await _walk(tracer, f"{engine} claim", claim),
            await _walk(tracer, f"{engine} ack", ack),
        ]


async def limit_walk(tracer: Tracer, directory: Path) -> list[Walk]:
    """One request to a limit that has room, by a caller that is alone."""

    async def use() -> None:
        await durable_rate_limit_acquire(key="walk", limit=1_000_000)

    async with Runtime(state_dir=directory):
        return [await _walk(tracer, "rate limit, alone", use)]


async def webhook_walks(tracer: Tracer, directory: Path) -> list[Walk]:
    """A signed request to its 202, then its event through a pool until it is settled."""
    async with Runtime(state_dir=directory) as runtime:
        await pool_create(name="walk", max_concurrent=4)
        target = SpawnToPool("walk", _nothing_to_do)
        await trigger_register(id="on", kind="webhook", provider="github", match={}, handler=target)
        intake = Intake(runtime, [Hook("on", "/on", "github", "github", (Key(SECRET),))])
        dispatcher = runtime.service(Triggers).dispatcher
        for number in range(WARM_UP + 1):
            headers, body = _request(runtime, number)
            accepted, settled = Walk("webhook to 202"), Walk("then to pool and settled")
            with tracer.on(accepted):
                reply = await intake.receive("/on", headers, body)
            assert reply.status == 202, reply
            with tracer.on(settled):
                await dispatcher.idle()
        return [accepted, settled]


def _nothing_to_do(event: TriggerEvent) -> Callable[[], Awaitable[None]]:
    async def task() -> None:
        return None

    return task


def _request(runtime: Runtime, number: int) -> tuple[dict[str, list[str]], bytes]:
    body = json.dumps({"number": number}).encode()
    now = runtime.clock.now_ms() // 1000
    signed = sign("github", SECRET, body, now, f"delivery-{number}")
    headers = {"content-type": "application/json", **signed}
    return {name.lower(): [value] for name, value in headers.items()}, body


async def all_walks(tracer: Tracer, postgres: str | None) -> list[Walk]:
    """Trace every walk; PostgreSQL only where its URL is given."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        walks = await pool_walk(tracer)
        walks += await queue_walks(tracer, f"sqlite:///{directory}/queue.sqlite", "SQLite")
        if postgres is not None:
            walks += await queue_walks(tracer, postgres, "PostgreSQL")
        walks += await webhook_walks(tracer, directory / "hooks")
        walks += await limit_walk(tracer, directory / "limits")
    return walks


def main() -> None:
    """Print the table, or the calls of the walks that were asked for."""
    options = argparse.ArgumentParser(description="Trace five walks through the house.")
    options.add_argument("--postgres", metavar="URL")
    options.add_argument("--calls", metavar="WORD")
    asked = options.parse_args()
    walks = asyncio.run(all_walks(Tracer(), asked.postgres))
    sys.setprofile(None)
    if asked.calls:
        for walk in walks:
            if asked.calls in walk.name:
                print("\n".join(f"{file}: {function}" for _, file, function in walk.calls))
        return
    print("| walk | calls | files | room changes | inner changes | threads |")
    print("|---|---|---|---|---|---|")
    for walk in walks:
        print("| " + " | ".join(str(each) for each in walk.row()) + " |")


if __name__ == "__main__":
    main()
