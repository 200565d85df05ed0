"""Keeping claims alive, on a thread that no handler can starve.

The thread has an event loop and a connection of its own. It looks at the claims that are held
several times per time to live, renews those that have used up a third of it, and reports a claim
that is lost, or that it could not renew in good time, so that its handler is cancelled before
another consumer may start. A fake clock has no use for a thread: there the same steps are timers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.clock import Clock, SystemClock, resolve
from harn.errors import HarnError
from harn.storage import Operation, ReopenedStore, Store
from harn.storage.queue import Settlement, SettlementResult, settle_claims
from harn.unsettled import PartialHandoff, UnsettledSources

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.workers.queue import Claim

logger = logging.getLogger("harn.workers")

LOOKS = 6
"""How often claims are looked at while they live."""
RENEW_AT = 1 / 3
GIVE_UP_AT = 0.9
"""Parts of its life after which a claim is renewed, and given up if that has not worked."""


class HeldClaim:
    """A claim that is being worked on."""

    __slots__ = ("asked_at", "claim", "lost", "renewed_at")

    def __init__(self, claim: Claim, lost: Callable[[str], None], now: float) -> None:
        self.claim = claim
        self.lost = lost
        self.renewed_at = self.asked_at = now


class ClaimRenewal:
    """Every claim that this runtime's consumers work on."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock: Clock = runtime.clock if runtime.clock.is_fake else SystemClock()
        self._held: dict[str, HeldClaim] = {}
        self._shortest = float("inf")
        self._thread: threading.Thread | None = None
        self._inner: asyncio.AbstractEventLoop | None = None
        self._poked: asyncio.Future[None] | None = None
        self._stopping = False
        self._timer: Any = None
        runtime.service(UnsettledSources).add("partial_handoffs", self._handoffs)

    def hold(self, claim: Claim, lost: Callable[[str], None]) -> None:
        """Renew *claim* from now on; call *lost* on the runtime's loop if that fails."""
        self._held[claim.claim_id] = HeldClaim(claim, lost, self._clock.monotonic())
        ttl = claim.ttl_ms / 1000
        if ttl < self._shortest:
            self._shortest = ttl
            self._begin()

    def let_go(self, claim: Claim) -> None:
        """Renew *claim* no more."""
        self._held.pop(claim.claim_id, None)

    def _handoffs(self) -> list[PartialHandoff]:
        now = self._runtime.clock.now_ms()
        return [held.claim.as_handoff(now) for held in self._held.values()]

    async def aclose(self) -> None:
        """End the thread."""
        self._stopping = True
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._poke()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    def _begin(self) -> None:
        if self._runtime.clock.is_fake:
            self._set_timer()
        elif self._thread is None:
            store = self._runtime.service(Store)
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._serve(store)), name="harn-renew-1", daemon=True
            )
            self._thread.start()
        else:
            self._poke()

    def _poke(self) -> None:
        if self._inner is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                self._inner.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self._poked is not None:
            resolve(self._poked)

    # -- on the thread -----------------------------------------------------------------------

    async def _serve(self, store: Store) -> None:
        self._inner = asyncio.get_running_loop()
        reopened = ReopenedStore(store, SystemClock())
        try:
            while not self._stopping:
                await self._look(reopened)
                await self._pause()
        finally:
            await reopened.aclose()

    async def _pause(self) -> None:
        self._poked = asyncio.get_running_loop().create_future()
        timer = self._clock.call_at(
            self._clock.monotonic() + self._shortest / LOOKS, partial(resolve, self._poked)
        )
        try:
            if not self._stopping:
                await self._poked
        finally:
            timer.cancel()

    async def _look(self, reopened: ReopenedStore) -> None:
        due = self._due()
        for queue, held in due.items():
            try:
                results = await reopened.run(self._renewing(queue, held))
            except HarnError as error:
                logger.warning("claims of queue %r could not be renewed: %s", queue, error)
                self._give_up_late_ones()
                continue
            self._take_in(held, results)

    # -- what both ways share ----------------------------------------------------------------

    def _due(self) -> dict[str, list[HeldClaim]]:
        now = self._clock.monotonic()
        due: dict[str, list[HeldClaim]] = defaultdict(list)
        for held in list(self._held.values()):
            if now - held.renewed_at >= held.claim.ttl_ms / 1000 * RENEW_AT:
                due[held.claim.job.queue].append(held)
        return due

    def _renewing(
        self, queue: str, held: list[HeldClaim]
    ) -> Callable[[], Operation[list[SettlementResult]]]:
        items: list[Settlement] = [
            one.claim.asking("renew", ttl_ms=one.claim.ttl_ms) for one in held
        ]
        sent = self._clock.monotonic()
        for one in held:
            one.asked_at = sent
        return lambda: settle_claims(queue, items, self._runtime.ids.new)

    def _take_in(self, held: list[HeldClaim], results: list[SettlementResult]) -> None:
        for one, result in zip(held, results, strict=True):
            if result.settled == "done":
                one.renewed_at = one.asked_at
                one.claim.expires_at_ms = result.expires_at
            elif self._held.pop(one.claim.claim_id, None) is not None:
                note = result.note or "its job was settled by another consumer"
                self._tell(one, note)

    def _give_up_late_ones(self) -> None:
        now = self._clock.monotonic()
        for one in list(self._held.values()):
            late = now - one.renewed_at >= one.claim.ttl_ms / 1000 * GIVE_UP_AT
            if late and self._held.pop(one.claim.claim_id, None) is not None:
                self._tell(one, "it could not be renewed in time")

    def _tell(self, one: HeldClaim, note: str) -> None:
        if self._runtime.on_loop_thread():
            one.lost(note)
            return
        with contextlib.suppress(RuntimeError):
            self._runtime.loop.call_soon_threadsafe(one.lost, note)

    # -- on a fake clock ---------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        when = self._clock.monotonic() + self._shortest / LOOKS
        self._timer = self._clock.call_at(when, self._tick, background=True)

    def _tick(self) -> None:
        store = self._runtime.service(Store)
        for queue, held in self._due().items():
            answer = store.submit(self._renewing(queue, held))
            answer.add_done_callback(partial(self._ticked, held))
        if self._held:
            self._set_timer()
        else:
            self._shortest = float("inf")

    def _ticked(
        self, held: list[HeldClaim], answer: asyncio.Future[list[SettlementResult]]
    ) -> None:
        if answer.cancelled():
            return
        if answer.exception() is None:
            self._take_in(held, answer.result())
        else:
            self._give_up_late_ones()
