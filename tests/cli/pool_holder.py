"""A process that has a tenant pool open and runs in it until its standard input ends.

Arguments: the store, how many tasks to submit, and how many of them can run. It prints a line when
the pool has them all and those run.
"""

from __future__ import annotations

import asyncio
import sys

import harn


async def main() -> None:
    pool = await harn.pool_create(name="gpu", scope="tenant", scope_id="acme", max_concurrent=3)
    begun = asyncio.Semaphore(0)

    async def hold() -> None:
        begun.release()
        await asyncio.Event().wait()

    for _ in range(int(sys.argv[2])):
        await pool.submit(hold)
    for _ in range(int(sys.argv[3])):
        await begun.acquire()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


harn.run(main, storage=sys.argv[1])
