"""Leases: a child that runs in one process at a time, whoever else has it in their supervisor.

A `LeaseClaim` seeks its lease until it has it, then keeps it by renewing every third of its time
to live. Its child is told to end when the lease was taken over, and also when it could not be
renewed for so long that somebody might take it over any moment: before that moment, not after.

Renewal must not starve because a child blocks the event loop. So claims live on a thread of their
own, with an event loop and a connection of its own. Where nobody outside can take anything over
(a store in memory) or time is fake, they live on the runtime's loop: the same code, no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import cast

from harn.clock import Clock, SystemClock, Timer, resolve
from harn.errors import DeadlineExceeded, StorageError
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.leases import lease_place, look_at_lease, release_lease, renew_lease, take_lease
from harn.supervisors.spec import Lease
from harn.tasks import deadline

logger = logging.getLogger("harn.supervisors")

POLL = 0.5
"""Seconds after which a lease that somebody has is looked at again."""
RENEWALS = 3
"""Renewals in the time that a lease lives."""
MARGIN = 0.1
"""The last part of that time, in which a lease that was not renewed counts as lost."""
RELEASE_WITHIN = 2.0


class LeaseClaim:
    """One child's way to its lease: sought, then held, then lost or released.

    *won* and *lost* are called on the supervisor's loop, and no more once it was released.
    """

    def __init__(
        self,
        lease: Lease,
        won: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self.lease = lease
        self.epoch: int | None = None
        """The fencing token, while the lease is held."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ttl_ms = cast(int, lease.ttl_ms)
        self._won = won
        self._lost = lost
        self._home = asyncio.get_running_loop()
        self._away: asyncio.AbstractEventLoop = self._home
        self._released = False
        self._bell: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Give it up, or back; returns at once, and `ended` is done when that has happened."""
        if not self._released:
            self._released = True
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended
                self._away.call_soon_threadsafe(self._ring)

    def move_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Live on *loop* from now on."""
        self._away = loop

    def died(self) -> None:
        """Say that nothing keeps it any more."""
        self._tell_lost()
        resolve(self.ended)

    async def live(self, store: Store, clock: Clock) -> None:
        """Seek, hold and release the lease, on whatever loop the claims live."""
        try:
            held = await self._seek(store, clock)
            if held is not None:
                epoch, asked = held
                self._tell(self._tell_won, epoch)
                if await self._hold(store, clock, epoch, asked):
                    await self._give_back(store, epoch)
                else:
                    self._tell(self._tell_lost)
        except Exception:
            logger.exception("the lease %r is lost", self.lease.name)
            self._tell(self._tell_lost)
        finally:
            self._tell(resolve, self.ended)

    async def _seek(self, store: Store, clock: Clock) -> tuple[int, float] | None:
        """Return the epoch and when it was asked for; None if released before."""
        name, me = self.lease.name, f"{socket.gethostname()}:{os.getpid()}"
        while not self._released:
            asked = clock.monotonic()
            pause = POLL
            try:
                held = await store.run(lambda: look_at_lease(name), write=False)
                if held is not None:
                    pause = min(POLL, held.left_ms / 1000)
                elif taken := await store.run(lambda: take_lease(name, me, self._ttl_ms)):
                    return taken.epoch, asked
            except StorageError as error:
                logger.warning("the lease %r cannot be sought: %s", name, error)
            await self._pause(clock, asked + pause)
        return None

    async def _hold(self, store: Store, clock: Clock, epoch: int, asked: float) -> bool:
        """Renew until released (true) or lost (false)."""
        ttl = self._ttl_ms / 1000
        every = ttl / RENEWALS
        while True:
            lost_at = asked + ttl * (1 - MARGIN)
            await self._pause(clock, asked + every, background=True)
            while not self._released:
                again = clock.monotonic()
                if again >= lost_at:
                    return False
                renewed = await self._renew(store, epoch, lost_at - again)
                if renewed is not None:
                    break
                await self._pause(clock, min(again + every / 4, lost_at), background=True)
            if self._released:
                return True
            if not renewed:
                return False
            asked = again

    async def _renew(self, store: Store, epoch: int, within: float) -> bool | None:
        """Renew once: true, false if it was taken over, None if the store does not answer."""
        name = self.lease.name
        try:
            async with deadline(within):
                return await store.run(
                    lambda: renew_lease(name, epoch, self._ttl_ms), durability="normal"
                )
        except (StorageError, DeadlineExceeded) as error:
            logger.warning("the lease %r was not renewed: %s", name, error)
            return None

    async def _give_back(self, store: Store, epoch: int) -> None:
        try:
            async with deadline(RELEASE_WITHIN):
                await store.run(lambda: release_lease(self.lease.name, epoch))
        except (StorageError, DeadlineExceeded) as error:
            logger.warning("the lease %r ends by itself: %s", self.lease.name, error)

    async def _pause(self, clock: Clock, until: float, *, background: bool = False) -> None:
        """Wait until then, or until released. Cancelling leaves nothing behind."""
        if self._released:
            return
        bell = self._bell = asyncio.get_running_loop().create_future()
        timer: Timer = clock.call_at(until, partial(resolve, bell), background=background)
        try:
            await bell
        finally:
            timer.cancel()
            self._bell = None

    def _ring(self) -> None:
        if self._bell is not None:
            resolve(self._bell)

    def _tell(self, step: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the supervisor's loop is closed
            self._home.call_soon_threadsafe(step, *args)

    def _tell_won(self, epoch: int) -> None:
        if not self._released:
            self.epoch = epoch
            self._won()

    def _tell_lost(self) -> None:
        if not self._released:
            self.epoch = None
            self._lost()


class Leases:
    """All claims of a runtime, and where they live."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._claims: set[LeaseClaim] = set()
        self._thread: _LeaseThread | None = None
        self._store: Store | None = None

    def seek(self, lease: Lease, won: Callable[[], None], lost: Callable[[], None]) -> LeaseClaim:
        """Seek *lease*: *won* is called when it is held, *lost* when it is so no more."""
        claim = LeaseClaim(lease, won, lost)
        self._claims.add(claim)
        claim.ended.add_done_callback(lambda _: self._claims.discard(claim))
        runtime = self._runtime
        if runtime.clock.is_fake or runtime.storage_url.startswith("memory:"):
            here = asyncio.ensure_future(claim.live(self._own_store(), runtime.clock))
            runtime.own(here)
        else:
            if self._thread is None or self._thread.is_over:
                self._thread = _LeaseThread(lease_place(runtime.storage_url))
            self._thread.start(claim)
            self._count(claim)
        return claim

    def _count(self, claim: LeaseClaim) -> None:
        """Let it be known that a thread could still wake somebody here."""
        activity = self._runtime.clock.activity
        activity.working += 1

        def one_less(_: object) -> None:
            activity.working -= 1

        claim.ended.add_done_callback(one_less)

    def _own_store(self) -> Store:
        place = lease_place(self._runtime.storage_url)
        if place == self._runtime.storage_url:
            return self._runtime.service(Store)
        if self._store is None:
            self._store = Store(self._runtime, place)
        return self._store

    async def aclose(self) -> None:
        """Release every lease, then end the thread."""
        for claim in list(self._claims):
            claim.release()
        for claim in list(self._claims):
            await claim.ended
        if self._thread is not None:
            await self._thread.aclose()
        if self._store is not None:
            await self._store.aclose()


class _LeaseThread:
    """A thread with an event loop, a runtime and a store of its own, for claims to live on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._home = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._home.create_future()
        self._loop = asyncio.new_event_loop()
        self._inbox: asyncio.Queue[LeaseClaim | None] = asyncio.Queue()
        self._claims: set[LeaseClaim] = set()
        self._thread = threading.Thread(target=self._run, name="harn-lease", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing lives here any more."""
        return self._ended.done()

    def start(self, claim: LeaseClaim) -> None:
        """Let *claim* live here."""
        self._claims.add(claim)
        claim.ended.add_done_callback(lambda _: self._claims.discard(claim))
        claim.move_to(self._loop)
        with contextlib.suppress(RuntimeError):  # its loop is closed: `_over` is on its way
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, claim)

    async def aclose(self) -> None:
        """End the thread, when its claims have ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, None)
        await self._ended
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            logger.exception("the thread of the leases has failed")
        finally:
            self._loop.close()
            with contextlib.suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._over)

    def _over(self) -> None:
        resolve(self._ended)
        for claim in list(self._claims):
            claim.died()

    async def _serve(self) -> None:
        own = Runtime(storage=self._url, clock=SystemClock())
        own._is_apart = True
        async with own as runtime:
            store = runtime.service(Store)
            while (claim := await self._inbox.get()) is not None:
                runtime.own(asyncio.ensure_future(claim.live(store, runtime.clock)))
