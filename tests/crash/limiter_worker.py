"""A process that takes what the limiter gives it, with a clock that jumps, until it is killed.

It writes one line per event to a ledger of its own: an admission with the instant that the limiter
stamped on it and what was charged, a settle before and after. Nothing is asked of the limiter
afterwards: the ledgers alone say whether it kept its promise.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

from harn import Bucket, Runtime, durable_rate_limit_acquire
from harn.clock import SystemClock

RULES: dict[str, tuple[int, int]] = {"hot": (40, 500), "mixed": (20, 300), "side": (60, 700)}


class JumpingClock(SystemClock):
    """A wall clock that is set an hour back and forth."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def now_ms(self) -> int:
        return super().now_ms() + self._chance.choice((-3_600_000, 0, 3_600_000))


def server_time_us() -> int:
    return time.time_ns() // 1000


def machine_time_us() -> int:
    return time.monotonic_ns() // 1000


class Worker:
    def __init__(self, where: str, ledger: str, seed: int, server_time: bool) -> None:
        self.where = where
        self.chance = random.Random(seed)
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.now = server_time_us if server_time else machine_time_us
        self.count = 0

    def write(self, **event: object) -> None:
        os.write(self.ledger, (json.dumps(event) + "\n").encode())

    async def acquire(self, timeout: str | None, **units: int) -> None:
        wanted = [Bucket(k, RULES[k][0], u, RULES[k][1]) for k, u in units.items()]
        called = self.now()
        grant = await durable_rate_limit_acquire(
            buckets=wanted, state_path=self.where, timeout_ms=timeout
        )
        returned = self.now()
        if not grant.ok:
            return
        self.count += 1
        name = f"{os.getpid()}-{self.count}"
        held: Any = grant._held
        charged = {each.key: each.charged_units for each in grant.buckets}
        self.write(kind="admitted", id=name, at=held._at, span=[called, returned], charged=charged)
        if "side" in units and self.chance.random() < 0.5:
            actual = self.chance.randrange(0, units["side"] + 1)
            self.write(kind="settling", id=name, at=self.now(), key="side", units=actual)
            landed = await grant.settle({"side": actual})
            self.write(kind="settled", id=name, at=self.now(), landed=landed)

    async def hot(self) -> None:
        while True:
            await self.acquire(None, hot=1)

    async def mixed(self) -> None:
        while True:
            units = self.chance.choice((1, 1, 2, 5, 30))
            timeout = self.chance.choice((None, "100ms", "0ms"))
            if self.chance.random() < 0.5:
                await self.acquire(timeout, mixed=units, side=self.chance.randrange(1, 20))
            else:
                await self.acquire(timeout, mixed=units)
            await asyncio.sleep(self.chance.random() * 0.05)

    async def run(self) -> None:
        async with Runtime(clock=JumpingClock(self.chance)):
            await self.acquire("0ms", side=1)  # opens the store
            print("ready", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
            lanes = [self.hot() for _ in range(4)] + [self.mixed() for _ in range(2)]
            await asyncio.gather(*lanes)


if __name__ == "__main__":
    where, ledger, seed, server_time = sys.argv[1:]
    asyncio.run(Worker(where, ledger, int(seed), server_time == "server").run())
