"""This process as a holder of slots: one lease for all shared pools of a runtime.

While the lease is renewed the process counts as alive, and its running tasks hold their slots. The
heartbeat's thread renews it, however busy the loop is. A process that could not renew it in time
finds that out by its own clock, before the lease expires: it cancels what it runs, and takes part
again under a new lease once the store answers. Any process that has a shared pool or a worker
queue open ends what is held under the old lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from harn.clock import sleep_until
from harn.errors import HarnError
from harn.settings import host_name
from harn.storage import Operation
from harn.storage.leases import (
    ConsumerLease,
    DeadConsumers,
    Heartbeat,
    JobRetention,
    LeaseRenewal,
    LeaseStore,
    drop_consumer,
    keep_consumer,
    list_consumers,
)
from harn.storage.queue import end_claims_of, retention

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.pools")

ASK_AGAIN_AFTER = 0.5
"""Seconds after which a process without a lease asks for one again."""
MOST_LISTED = 1000


class Member(NamedTuple):
    """A shared pool that this process has open."""

    functions: Callable[[], list[str]]
    """Returns the durable functions that it runs for the pool. On any thread."""
    lost: Callable[[str], None]
    """Called when the lease is lost, with the lease."""
    joined: Callable[[], None]
    """Called when there is a lease again."""
    keeping: retention.Keeping
    """How long the store keeps its ended tasks."""


class PoolProcess:
    """The lease of this process: `runtime.service(PoolProcess)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.service(LeaseStore).store
        self._heartbeat = runtime.service(Heartbeat)
        self._dead = runtime.service(DeadConsumers)
        self._retention = runtime.service(JobRetention)
        self._members: dict[str, Member] = {}
        self._renewal: LeaseRenewal | None = None
        self._taking: asyncio.Task[None] | None = None
        self.lease: str = runtime.ids.uuid7()

    @property
    def is_alive(self) -> bool:
        """Whether the lease is held."""
        return self._renewal is not None

    async def join(self, queue: str, member: Member) -> None:
        """Hold slots of the pool *queue* under the lease. Cancelling leaves the pool out."""
        self._members[queue] = member
        try:
            await self._take()
        except BaseException:
            del self._members[queue]
            raise
        self._dead.watch(end_claims_of)
        self._retention.serve(queue, partial(retention.trim_queue, queue, member.keeping))

    async def leave(self, queue: str) -> None:
        """Hold no slot of that pool any more; the last pool to leave ends the lease.

        Cancelling may leave the lease in the store until it expires.
        """
        if self._members.pop(queue, None) is None:
            return
        self._retention.leave(queue)
        try:
            if self._members:
                await self._take()
            else:
                await self._end()
        except HarnError as error:
            logger.info("the lease of this process stays listed for a while: %s", error)

    def abandon(self, queue: str) -> None:
        """Leave that pool as a process that dies would: the lease expires by itself."""
        if self._members.pop(queue, None) is not None:
            self._retention.leave(queue)
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
        self._lose("its pools were dropped")

    def holds(self, lease: str) -> bool:
        """Tell whether *lease* is held at this moment, by this process's own clock."""
        renewal = self._renewal
        return renewal is not None and self.lease == lease and not renewal.is_overdue

    def note_fenced(self, lease: str) -> None:
        """Note that the store has ended *lease*."""
        if self._renewal is not None and self.lease == lease:
            self._renewal.stop()
            self._lose("it expired")

    async def functions_elsewhere(self, queue: str) -> tuple[frozenset[str], int]:
        """Return the functions that other living processes run for a pool, and the store's time.

        Cancelling leaves nothing behind.
        """
        rows = await self._store.run(partial(list_consumers, MOST_LISTED), write=False)
        found: set[str] = set()
        now = 0
        for row in rows:
            now = row.now
            if row.lease != self.lease and row.expires_at > row.now:
                found.update(row.functions.get(queue) or ())
        return frozenset(found), now

    async def _take(self) -> None:
        """Take the lease, or write which pools are open under it now."""
        asked = self._heartbeat.clock.monotonic()
        is_held = await self._store.run(self._keep, durability="normal")
        if not is_held:
            self._lose("it expired")
        elif self._renewal is None:
            settings = self._runtime.settings
            self._renewal = LeaseRenewal(
                self._runtime,
                "the lease of this process's pools",
                self._store,
                self._keep,
                every=settings.lease_renew_ms / 1000,
                ttl=settings.lease_ms / 1000,
                since=asked,
                lost=self._lose,
            )

    async def _end(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()
            self._renewal = None
        if self._taking is not None:
            self._taking.cancel()
        lease, self.lease = self.lease, self._runtime.ids.uuid7()
        await self._store.run(partial(drop_consumer, lease), durability="normal")

    def _keep(self) -> Operation[bool]:
        functions: dict[str, list[str] | None] = {
            queue: member.functions() for queue, member in list(self._members.items())
        }
        return keep_consumer(
            ConsumerLease(
                self.lease,
                f"pools@{host_name()}:{os.getpid()}",
                host_name(),
                os.getpid(),
                functions,
                self._runtime.settings.lease_ms,
            )
        )

    def _lose(self, reason: str) -> None:
        self._renewal = None
        lease, self.lease = self.lease, self._runtime.ids.uuid7()
        if not self._members:
            return
        logger.warning(
            "the lease of this process's pools is lost (%s): what it runs is cancelled, and it "
            "takes part again under a new lease",
            reason,
        )
        for member in list(self._members.values()):
            member.lost(lease)
        if self._taking is None:
            self._taking = self._runtime.loop.create_task(self._take_again())
            self._runtime.own(self._taking)

    async def _take_again(self) -> None:
        try:
            while not self.is_alive and self._members:
                try:
                    await self._take()
                except HarnError:
                    clock = self._runtime.clock
                    await sleep_until(clock, clock.monotonic() + ASK_AGAIN_AFTER, background=True)
        finally:
            self._taking = None
        for member in list(self._members.values()):
            member.joined()

    async def aclose(self) -> None:
        """End the lease, if pools were left open."""
        self._members.clear()
        if self._renewal is not None:
            await self._end()
