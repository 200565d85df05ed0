"""Leases: a child with a lease runs in one process at a time, also with several supervisors.

A `LeaseClaim` tries to take its lease until it succeeds, on the runtime's loop: a process whose
loop is blocked could not start the child anyway. Then the heartbeat renews the lease every third of
its time to live, on a thread that a child cannot block. The child is stopped when another process
has taken the lease. It is also stopped when renewals fail, before the moment at which another
process could take the lease.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from harn.clock import resolve
from harn.context import current_frame_var
from harn.errors import DeadlineExceeded, StorageError
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.leases import (
    Heartbeat,
    LeaseRenewal,
    LeaseStore,
    look_at_lease,
    lost_at,
    release_lease,
    renew_lease,
    take_lease,
)
from harn.supervisors.spec import Lease
from harn.tasks import deadline

logger: logging.Logger = logging.getLogger("harn.supervisors")

POLL = 0.5
"""Seconds after which a lease that another process holds is read again."""
RENEWALS = 3
"""Renewals during the time to live of a lease."""
RELEASE_WITHIN = 2.0
"""Seconds to wait for the store to release a lease; after that the lease expires by itself."""


class LeaseClaim:
    """One child's claim on its lease: it waits for the lease, holds it, then loses or releases it.

    *won* and *lost* are not called after `release`.
    """

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        lease: Lease,
        won: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.epoch: int | None = None
        """The fencing token, while the lease is held."""
        self._runtime = runtime
        self._clock = runtime.service(Heartbeat).clock
        """The clock that the heartbeat renews by: the program's own may tell another time."""
        self._store = store
        self._ttl_ms = cast(int, lease.ttl_ms)
        self._won = won
        self._lost = lost
        self._is_released = False
        self._is_lost = False
        self._wakeup: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Ask `run` to stop waiting for the lease or to release it, and to return."""
        self._is_released = True
        self._wake()

    async def run(self) -> None:
        """Wait for the lease, hold it, and release it after `release`.

        Cancelling does not release it: it expires.
        """
        try:
            await self._take_and_hold()
        except Exception:
            logger.exception("the lease %r is lost", self.lease.name)
            self._lose()

    async def _take_and_hold(self) -> None:
        taken = await self._wait_for_lease()
        if taken is None:
            return
        epoch, since = taken
        renewal = self._keep(epoch, since)
        try:
            self._win(epoch)
            while not self._is_released and not self._is_lost:
                await self._pause(None)
        finally:
            renewal.stop()
        if self._is_released:
            await self._release(epoch)

    async def _wait_for_lease(self) -> tuple[int, float] | None:
        """Return the epoch and the time of the request; None if released before."""
        while not self._is_released:
            asked = self._clock.monotonic()
            pause = POLL
            try:
                held = await self._store.run(lambda: look_at_lease(self.lease.name), write=False)
                if held is not None:
                    pause = min(POLL, held.left_ms / 1000)
                elif epoch := await self._take(asked):
                    return epoch, asked
            except StorageError as error:
                logger.warning("the lease %r cannot be taken: %s", self.lease.name, error)
            await self._pause(asked + pause)
        return None

    async def _take(self, asked: float) -> int | None:
        name, holder = self.lease.name, f"{socket.gethostname()}:{os.getpid()}"
        taken = await self._store.run(lambda: take_lease(name, holder, self._ttl_ms))
        if taken is None:
            return None
        if self._clock.monotonic() >= lost_at(asked, self._ttl_ms / 1000):
            # The loop was blocked meanwhile: another process may already hold the lease.
            await self._release(taken.epoch)
            return None
        return taken.epoch

    def _keep(self, epoch: int, since: float) -> LeaseRenewal:
        name, ttl = self.lease.name, self._ttl_ms / 1000
        return LeaseRenewal(
            self._runtime,
            f"the lease {name!r}",
            self._store,
            lambda: renew_lease(name, epoch, self._ttl_ms),
            every=ttl / RENEWALS,
            ttl=ttl,
            since=since,
            lost=lambda _: self._lose(),
        )

    async def _release(self, epoch: int) -> None:
        try:
            async with deadline(RELEASE_WITHIN):
                await self._store.run(lambda: release_lease(self.lease.name, epoch))
        except (StorageError, DeadlineExceeded) as error:
            logger.warning("the lease %r expires by itself: %s", self.lease.name, error)

    async def _pause(self, until: float | None) -> None:
        """Wait until *until* of the heartbeat's clock, or until the lease is released or lost."""
        if self._is_released:
            return
        wakeup = self._wakeup = asyncio.get_running_loop().create_future()
        wake = partial(resolve, wakeup)
        timer = None if until is None else self._clock.call_at(until, wake)
        try:
            await wakeup
        finally:
            self._wakeup = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._wakeup is not None:
            resolve(self._wakeup)

    def _win(self, epoch: int) -> None:
        if not self._is_released:
            self.epoch = epoch
            self._won()

    def _lose(self) -> None:
        if not self._is_released:
            self.epoch = None
            self._is_lost = True
            self._wake()
            self._lost()


class Leases:
    """All lease claims of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._claims: dict[asyncio.Task[None], LeaseClaim] = {}
        self._store = runtime.service(LeaseStore)
        # A claim belongs to the runtime, not to the task in whose context it is made.
        self._context = contextvars.copy_context()
        self._context.run(current_frame_var.set, runtime.frame)

    def claim(self, lease: Lease, won: Callable[[], None], lost: Callable[[], None]) -> LeaseClaim:
        """Try to take *lease*: *won* is called when it is held, *lost* when it is lost."""
        claim = LeaseClaim(self._runtime, self._store.store, lease, won, lost)
        # Not `loop.create_task`: an eager task factory would run it before it is known here.
        loop, context = self._runtime.loop, self._context.copy()
        task = asyncio.Task(claim.run(), loop=loop, context=context)
        self._claims[task] = claim
        self._count(+1)
        task.add_done_callback(self._ended)
        return claim

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._count(-1)
        del self._claims[task]

    def _count(self, change: int) -> None:
        """Count waiting claims, for the deadlock detector: another process may end such a wait."""
        if not self._runtime.clock.is_fake and not self._store.store.is_memory:
            self._runtime.clock.activity.working += change

    async def aclose(self) -> None:
        """Release every lease and wait until that is done."""
        for claim in list(self._claims.values()):
            claim.release()
        while self._claims:
            await asyncio.wait(self._claims)
