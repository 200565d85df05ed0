"""Two runtimes on one store, as two processes that share a pool would be."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

from harn import Pool, Runtime, pool_create
from harn.context import current_frame_var
from harn.pools.shared_process import PoolProcess

gates: dict[str, asyncio.Event] = {}
ran: list[Any] = []
"""What ran, in the order of its start."""


class Process:
    """One of several runtimes on a store."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    async def open(self, **options: Any) -> Pool:
        settings = {"name": "gpu", "scope": "tenant", "scope_id": "acme", **options}
        pool: Pool = await self.inside(lambda: pool_create(**settings))
        return pool

    async def inside(self, fn: Callable[[], Awaitable[Any]]) -> Any:
        """Await *fn* as a task of this runtime."""

        async def call() -> Any:
            return await fn()

        return await self.runtime.loop.create_task(call(), context=entered(self.runtime))

    def renew_no_more(self) -> None:
        """Renew the lease no more and notice nothing, as if the process were paused."""
        renewal = self.runtime.service(PoolProcess)._renewal
        assert renewal is not None
        renewal.stop()

    @property
    def lease(self) -> str:
        return self.runtime.service(PoolProcess).lease


def entered(runtime: Runtime) -> contextvars.Context:
    context = contextvars.Context()
    context.run(current_frame_var.set, runtime.frame)
    return context


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def held(name: str) -> Callable[[], Awaitable[str]]:
    """Return a closure that notes its start and waits for its gate."""
    gates[name] = asyncio.Event()

    async def closure() -> str:
        ran.append(name)
        await gates[name].wait()
        return name

    return closure


def open_held(name: str) -> Callable[[], Awaitable[str]]:
    """Return a closure like `held`, whose gate is open."""
    closure = held(name)
    gates[name].set()
    return closure
