"""One process of a shared pool: it submits, runs what the pool gives it, and keeps a ledger.

Arguments: the store, the ledger, how many tasks of each sort to submit, and the pool's cap. With
`hold` after these it submits, before all others, a closure that runs until it is cancelled. Every
line of the ledger is one write: `what name pid time`, by a clock that all processes share. A
`submitted` names a call that the pool has, `ready` comes when every submit has returned, `settled`
when every task has ended, `lost` when the process has lost its lease. The process ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import harn

LEDGER = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
POOL: dict[str, Any] = {
    "name": "storm",
    "scope": "org",
    "scope_id": "crash",
    "queue": harn.fair_round_robin("tenant_id"),
    "backpressure": harn.backpressure_queue(4),
}


def note(what: str, name: str) -> None:
    os.write(LEDGER, f"{what} {name} {os.getpid()} {time.monotonic()}\n".encode())


class Lost(logging.Handler):
    """Notes that the process has lost its lease."""

    def emit(self, record: logging.LogRecord) -> None:
        if "is lost" in record.getMessage():
            note("lost", "-")


async def work(name: str) -> str:
    note("begin", name)
    await asyncio.sleep(0.01 + zlib.crc32(name.encode()) % 50 / 1000)
    note("end", name)
    return name


@harn.durable(name="crash:shared_once")
async def once(name: str) -> str:
    return await work(name)


@harn.durable(name="crash:shared_again", rerun=True)
async def again(name: str) -> str:
    return await work(name)


@harn.durable(name="crash:shared_stubborn", rerun=True)
async def stubborn(name: str) -> None:
    """Run until the process dies, whatever cancels it."""
    note("begin", name)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("cancelled", name)


async def submit(pool: harn.Pool, fn: Callable[..., Any], name: str, tenant: str) -> harn.PoolTask:
    """Submit until the pool has it: the store may be away, and the key makes it one task."""
    while True:
        try:
            task = await pool.submit(fn, name, idempotency_key=name, key=name, tenant_id=tenant)
        except harn.StorageError:
            await asyncio.sleep(0.2)
            continue
        note("submitted", name)
        return task


async def opened(cap: int) -> harn.Pool:
    """Open the pool; the store may be away."""
    while True:
        try:
            return await harn.pool_create(max_concurrent=cap, **POOL)
        except harn.StorageError:
            await asyncio.sleep(0.2)


async def hold(name: str) -> None:
    note("begin", name)
    try:
        await asyncio.sleep(3600)
    finally:
        note("end", name)


async def main(count: int, cap: int) -> None:
    logging.getLogger("harn.pools").addHandler(Lost())
    pool = await opened(cap)
    tenant = str(os.getpid())
    tasks = []
    if "hold" in sys.argv[5:]:
        tasks.append(await submit(pool, hold, f"hold-{tenant}", tenant))
    for n in range(count):
        for sort, fn in (("once", once), ("again", again), ("closure", work)):
            tasks.append(await submit(pool, fn, f"{sort}-{tenant}-{n}", tenant))
    note("ready", "-")
    for task in tasks:
        await task.wait()
    note("settled", "-")
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    harn.run(partial(main, int(sys.argv[3]), int(sys.argv[4])), storage=sys.argv[1])
