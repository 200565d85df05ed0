"""One process of a shared pool: it submits, runs what the pool gives it, and keeps a ledger.

Arguments: the store, the ledger, how many tasks of each sort to submit, and the pool's cap. Every
line of the ledger is one write: `what name pid time`, by a clock that all processes share. The
process ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial

import harn

LEDGER = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(what: str, name: str) -> None:
    os.write(LEDGER, f"{what} {name} {os.getpid()} {time.monotonic()}\n".encode())


async def work(name: str) -> str:
    note("begin", name)
    await asyncio.sleep(0.02)
    note("end", name)
    return name


@harn.durable(name="crash:shared_once")
async def once(name: str) -> str:
    return await work(name)


@harn.durable(name="crash:shared_again", rerun=True)
async def again(name: str) -> str:
    return await work(name)


async def main(count: int, cap: int) -> None:
    pool = await harn.pool_create(
        name="storm",
        scope="org",
        scope_id="crash",
        max_concurrent=cap,
        queue=harn.fair_round_robin("tenant_id"),
        backpressure=harn.backpressure_queue(4),
    )
    tenant = str(os.getpid())
    for n in range(count):
        for sort, fn in (("once", once), ("again", again)):
            name = f"{sort}-{tenant}-{n}"
            await pool.submit(fn, name, tenant_id=tenant)
            note("submitted", name)
        await pool.submit(partial(work, f"closure-{tenant}-{n}"), tenant_id=tenant)
    note("ready", "-")
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    harn.run(partial(main, int(sys.argv[3]), int(sys.argv[4])), storage=sys.argv[1])
