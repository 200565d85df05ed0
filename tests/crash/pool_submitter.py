"""Submits durable calls to a pipeline pool and says what was acknowledged; made to be killed.

`python pool_submitter.py STATE_DIR LEDGER FIRST COUNT`: each submit appends `ack <n> <id>` to the
ledger once it has returned, each call `ran <n>` when it runs. With COUNT 0 it only drains what an
earlier process left. Both lines are single appends, so a kill never tears one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

import harn

LEDGER = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def say(*words: object) -> None:
    os.write(LEDGER, (" ".join(map(str, words)) + "\n").encode())


@harn.durable(name="crash:work")
async def work(number: int) -> int:
    say("ran", number)
    return number


async def submit(pool: harn.Pool, number: int) -> None:
    task = await pool.submit(partial(work, number), idempotency_key=f"key-{number}")
    say("ack", number, task.id)


async def main(first: int, count: int) -> None:
    pool = await harn.pool_create(
        name="crash", scope="pipeline", pipeline_id="p", max_concurrent=4, queue="fifo"
    )
    say("open", pool.snapshot(tasks=False).total)
    for start in range(first, first + count, 50):
        await asyncio.gather(*(submit(pool, n) for n in range(start, start + 50)))
    await pool.close()
    say("closed")


if __name__ == "__main__":
    harn.run(main, int(sys.argv[3]), int(sys.argv[4]), state_dir=sys.argv[1], storage="memory://")
