"""A writer that is killed: it says what it intends and what was acknowledged, on stdout."""

from __future__ import annotations

import asyncio
import os
import sys

from harn import Runtime
from harn.storage import draft


async def main(url: str, name: str) -> None:
    said = sys.stdout.fileno()

    def say(word: str, payload: str) -> None:
        os.write(said, f"{word} {payload}\n".encode())

    async with Runtime(storage=url) as runtime:
        log = runtime.event_log

        async def write(lane: int) -> None:
            n = 0
            while True:
                payload = f"{name}-{lane}-{n}"
                say("intent", payload)
                if n % 3 == 2:  # two topics, all or none
                    await log.append([draft("a", "k", payload), draft("b", "k", payload)])
                else:
                    await log.emit("a", "k", payload)
                say("ack", payload)
                n += 1

        say("ready", name)
        await asyncio.gather(*(write(lane) for lane in range(4)))


asyncio.run(main(sys.argv[1], sys.argv[2]))
