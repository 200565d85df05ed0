"""Adds one to a stored number, many times, by compare and set; other processes do the same."""

from __future__ import annotations

import asyncio
import sys

from harn import Runtime, store_cas, store_snapshot


async def add_one() -> None:
    while True:
        seen = await store_snapshot("count")
        if await store_cas("count", seen, (seen.value or 0) + 1):
            return


async def main(url: str, times: int) -> None:
    async with Runtime(storage=url):
        for _ in range(times):
            await add_one()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
