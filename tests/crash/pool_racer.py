"""Opens one pipeline pool whenever it is told to, against others who are told at the same time.

`python pool_racer.py STATE_DIR`: for each `go <n>` on stdin it tries to open the pool and says
`won` or `locked`; a winner submits one durable call and waits for it. `release` closes the pool.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

import harn


@harn.durable(name="race:work")
async def work(number: int) -> int:
    return number


async def told() -> list[str]:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.split()


async def main() -> None:
    pool = None
    print("ready", flush=True)
    while words := await told():
        if words[0] == "go":
            try:
                pool = await harn.pool_create(name="race", scope="pipeline", pipeline_id="p")
            except harn.PoolLocked:
                print("locked", flush=True)
                continue
            await (await pool.submit(partial(work, int(words[1])))).wait()
            print("won", flush=True)
        elif pool is not None:
            await pool.close()
            pool = None
            print("released", flush=True)


if __name__ == "__main__":
    harn.run(main, state_dir=sys.argv[1], storage="memory://")
