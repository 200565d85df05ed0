"""A process that enqueues and works until its standard input ends: `python -m ... URL`.

It prints the number of each job after its enqueue was acknowledged, a line each.
"""

from __future__ import annotations

import asyncio
import sys

from harn import Job, Runtime, drain, worker_queue

AHEAD = 20
"""How many jobs may wait: the copy has some, and the load stays bounded."""


async def main(url: str) -> None:
    async with Runtime(storage=url):
        working = asyncio.create_task(drain("load", _handle, stop_when_empty=False))
        ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        number = 0
        while not ended.done():
            number += 1
            receipt = await worker_queue("load").enqueue({"n": number}, tenant_id=f"t{number % 3}")
            print(number, flush=True)
            if number % AHEAD == 0:
                await receipt.result()
        working.cancel()
        await asyncio.wait([working])


async def _handle(job: Job) -> int:
    return int(job.payload["n"])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
