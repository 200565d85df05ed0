"""Two runtimes on one store, as two processes that share a pool would be."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from harn import Pool, Runtime, pool_create
from harn.context import current_frame_var
from harn.pools.shared_process import PoolProcess
from harn.storage import Operation, ask
from harn.storage.leases import ConsumerLease, DeadConsumers, LeaseStore, keep_consumer
from harn.storage.queue import end_claims_of

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

    async def expire(self, finder: Process) -> None:
        """Let the lease end while this process notices nothing, as if it were paused.

        *finder* finds the expired lease and ends what hangs on it.
        """
        process = self.runtime.service(PoolProcess)
        lease, renewal = process.lease, process._renewal
        assert renewal is not None
        renewal.stop()
        renewal._asked = -1e9  # by its own clock the process is late, too
        await finder.end_lease(lease, process._members)

    async def end_lease(self, lease: str, queues: Iterable[str]) -> None:
        """End a *lease* of another process, and what hangs on it, as if it had just expired."""
        functions: dict[str, list[str] | None] = dict.fromkeys(queues)
        over = ConsumerLease(lease, "paused", "host", 1, functions, ttl_ms=-1)
        store = self.runtime.service(LeaseStore).store
        async with asyncio.timeout(30):
            while not await store.run(partial(_is_ended, lease), write=False):
                # Again and again, since a renewal may have been under way.
                await store.run(partial(keep_consumer, over))
                self.runtime.service(DeadConsumers).watch(end_claims_of)
                await asyncio.sleep(0.01)

    @property
    def lease(self) -> str:
        return self.runtime.service(PoolProcess).lease


def _is_ended(lease: str) -> Operation[bool]:
    return bool((yield ask("ended_consumer", lease=lease)))


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
