"""Renewing claims while their handlers run.

The heartbeat's thread looks at each held claim several times in its life and renews those that have
used up a third of it, in one operation for each queue. A claim that is lost, or that could not be
renewed in time, is reported, so that its handler is cancelled before another consumer starts. If
the process must exit while its event loop is blocked, the thread releases the claims.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from harn.errors import HarnError
from harn.stopping import last_calls
from harn.storage import Store
from harn.storage.leases import Heartbeat
from harn.storage.queue import Settlement, SettlementResult, settle_claims, stored_jobs
from harn.unsettled_sources import PartialHandoff, UnsettledSources

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.workers.held_claim import Claim

logger: logging.Logger = logging.getLogger("harn.workers")

LOOKS = 6
"""How often claims are looked at while they live."""
RENEW_AT = 1 / 3
GIVE_UP_AT = 0.9
"""Parts of its life after which a claim is renewed, and given up if the renewal failed."""
PATIENCE = 1.0
"""The least seconds that the store has to answer, however short a claim's life is."""


class RenewedClaim:
    """A claim that is being worked on."""

    __slots__ = ("claim", "lost", "renewed_at", "ttl")

    def __init__(self, claim: Claim, lost: Callable[[str], None], now: float) -> None:
        self.claim: Claim = claim
        self.lost: Callable[[str], None] = lost
        self.ttl: float = claim.ttl_ms / 1000
        self.renewed_at: float = now


class ClaimRenewal:
    """Every claim that this runtime's consumers work on.

    The loop's thread adds and removes claims, the heartbeat's reads and removes them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._heartbeat = runtime.service(Heartbeat)
        self._clock = self._heartbeat.clock
        self._beat = self._heartbeat.beat("the claims", runtime.service(Store), self._look)
        self._held: dict[str, RenewedClaim] = {}
        self._shortest = float("inf")
        """The shortest time to live, in seconds, for which the next look is planned."""
        self._releasing: asyncio.Task[None] | None = None
        runtime.service(UnsettledSources).add("partial_handoffs", self._handoffs)
        if not self._clock.is_fake:
            last_calls[self] = self._release_held

    def hold(self, claim: Claim, lost: Callable[[str], None]) -> None:
        """Renew *claim* from now on; call *lost* on the runtime's loop if that fails."""
        held = RenewedClaim(claim, lost, self._clock.monotonic())
        self._held[claim.claim_id] = held
        if held.ttl < self._shortest:
            self._shortest = held.ttl
            self._beat.wake()

    def let_go(self, claim: Claim) -> None:
        """Stop renewing *claim*."""
        self._held.pop(claim.claim_id, None)

    def lose_job(self, queue: str, id: int, note: str) -> None:
        """Lose the claim on a job that was cancelled in this process."""
        for one in list(self._held.values()):
            if one.claim.job.id == id and one.claim.job.queue == queue:
                self._lose(one, note)

    async def lose_cancelled(self, by: float) -> None:
        """Lose the claims on jobs that other processes cancelled; on the heartbeat's thread."""
        by_queue: dict[str, dict[int, RenewedClaim]] = defaultdict(dict)
        for one in list(self._held.values()):
            by_queue[one.claim.job.queue][one.claim.job.id] = one
        for queue, held in by_queue.items():
            look = partial(stored_jobs.settled_among, queue, sorted(held))
            for job in (await self._beat.run(look, by=by)).jobs:
                self._lose(held[job.id], "the job was cancelled")

    async def aclose(self) -> None:
        """Stop renewing all claims."""
        last_calls.pop(self, None)
        self._held.clear()
        self._beat.stop()

    def _handoffs(self) -> list[PartialHandoff]:
        now = self._runtime.clock.now_ms()
        return [held.claim.as_handoff(now) for held in self._held.values()]

    def _release_held(self, within: float) -> None:
        """Release every claim, *within* seconds, because the process exits; on a third thread."""
        if self._held:
            ended = threading.Event()
            self._heartbeat.call(partial(self._begin_release, within, ended))
            ended.wait(within)

    # -- on the heartbeat's thread -----------------------------------------------------------

    async def _look(self) -> float | None:
        for queue, held in self._due().items():
            try:
                await self._renew(queue, held)
            except HarnError as error:
                logger.warning("claims of queue %r could not be renewed: %s", queue, error)
                self._give_up_late_ones()
        return self._next_look()

    def _begin_release(self, within: float, ended: threading.Event) -> None:
        by = self._clock.monotonic() + within
        self._releasing = asyncio.get_running_loop().create_task(self._release(by))
        self._releasing.add_done_callback(lambda _: ended.set())

    async def _release(self, by: float) -> None:
        asked: dict[str, list[Settlement]] = defaultdict(list)
        for one in list(self._held.values()):
            release = one.claim.asking("release", reason="consumer stopped")
            asked[one.claim.job.queue].append(release)
        self._held.clear()
        for queue, items in asked.items():
            recipe = partial(settle_claims, queue, items, self._runtime.ids.new)
            await self._beat.run(recipe, by=by)

    def _due(self) -> dict[str, list[RenewedClaim]]:
        now = self._clock.monotonic()
        due: dict[str, list[RenewedClaim]] = defaultdict(list)
        for held in list(self._held.values()):
            if now - held.renewed_at >= held.ttl * RENEW_AT:
                due[held.claim.job.queue].append(held)
        return due

    async def _renew(self, queue: str, held: list[RenewedClaim]) -> None:
        items: list[Settlement] = [
            one.claim.asking("renew", ttl_ms=one.claim.ttl_ms) for one in held
        ]
        asked = self._clock.monotonic()
        results = await self._beat.run(
            lambda: settle_claims(queue, items, self._runtime.ids.new), by=_by(held, asked)
        )
        for one, result in zip(held, results, strict=True):
            self._take_in(one, result, asked)

    def _take_in(self, one: RenewedClaim, result: SettlementResult, asked: float) -> None:
        if result.settled == "done":
            one.renewed_at = asked  # not when the answer came: the store may have been slow
            one.claim.expires_at_ms = result.expires_at
        else:
            self._lose(one, result.note or "its job was settled by another consumer")

    def _give_up_late_ones(self) -> None:
        now = self._clock.monotonic()
        for one in list(self._held.values()):
            if now - one.renewed_at >= one.ttl * GIVE_UP_AT:
                self._lose(one, "it could not be renewed in time")

    def _lose(self, one: RenewedClaim, note: str) -> None:
        # A claim that is no longer held was settled meanwhile, so it is not lost.
        if self._held.pop(one.claim.claim_id, None) is not None:
            self._heartbeat.tell(one.lost, note)

    def _next_look(self) -> float | None:
        # Reset before the claims are read, so that a claim added after that wakes this thread.
        self._shortest = float("inf")
        lives = [held.ttl for held in list(self._held.values())]
        if not lives:
            return None
        self._shortest = min(lives)
        return self._clock.monotonic() + self._shortest / LOOKS


def _by(held: list[RenewedClaim], now: float) -> float:
    """Return when an answer is too late: when the first claim of *held* is given up.

    It is at least `PATIENCE` away: a connection may have to be opened, or the process was paused.
    """
    return max(now + PATIENCE, min(one.renewed_at + one.ttl * GIVE_UP_AT for one in held))
