"""One look at the store for all the idle consumers of a runtime.

An idle consumer hears of jobs that are put into its queue. A notification may be lost, and SQLite
only tells that another process has written something. So the store is looked at after such a hint
and twice a second: once for all the queues that wait, however many they are, and not at all where
the store can tell that nothing was written since.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from harn.clock import Timer, resolve
from harn.errors import HarnError
from harn.graceful_stop import parked
from harn.storage import Store
from harn.storage.queue import claimable

if TYPE_CHECKING:
    from harn.runtime import Runtime

POLL = 0.5
"""Seconds between two looks without a hint."""


class IdleLooks:
    """The queues whose consumers are idle: `runtime.service(IdleLooks)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._store = runtime.service(Store)
        self._waiting: dict[str, dict[asyncio.Future[None], bool]] = {}
        """By queue, what its consumers wait for, and whether a look has found a job."""
        self._timer: Timer | None = None
        self._looking: asyncio.Future[claimable.Look] | None = None
        self._is_asked_again = False
        self._mark: object | None = None
        """The store's mark when the last look began, if it was for all that wait now."""
        self._joined = 0
        """How many have begun to wait, ever."""
        self._due_at: float | None = None
        """When one of the queues may have a job that had none then."""

    async def wait(
        self, queue: str, topic: str, since: tuple[int, int], within: float | None
    ) -> bool:
        """Wait until *queue* may have work, or *within* seconds have passed.

        It may have if its *topic* has grown *since*, or if a look finds a job in it: then the
        answer is True. Cancelling and a graceful stop leave nothing behind.
        """
        if self._store.growth(topic) != since:
            return False
        with self._store.awaiting(topic) as woken:
            timer = None
            if within is not None:
                then, wake = self._clock.monotonic() + within, partial(resolve, woken)
                timer = self._clock.call_at(then, wake, background=True)
            self._join(queue, woken)
            try:
                with parked(woken):
                    await woken
            finally:
                found = self._leave(queue, woken)
                if timer is not None:
                    timer.cancel()
            return found

    def _join(self, queue: str, woken: asyncio.Future[None]) -> None:
        if not self._waiting:
            self._store.on_hint(self._look)
            self._plan()
        self._waiting.setdefault(queue, {})[woken] = False
        self._joined += 1
        self._mark = None  # what was written before, or will be due, no look has seen for it

    def _leave(self, queue: str, woken: asyncio.Future[None]) -> bool:
        others = self._waiting[queue]
        found = others.pop(woken)
        if not others:
            del self._waiting[queue]
        if not self._waiting:
            self._store.off_hint(self._look)
            self._unplan()
        return found

    def _plan(self) -> None:
        self._unplan()
        now = self._clock.monotonic()
        then = now + POLL
        if self._due_at is not None:
            then = max(now, min(then, self._due_at))
        self._timer = self._clock.call_at(then, self._look, background=True)

    def _unplan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Ask for all that wait, unless nothing was written since they were asked for."""
        if self._looking is not None:
            self._is_asked_again = True
            return
        mark = self._store.mark()
        if mark is not None and mark == self._mark and self._due_at is None:
            self._plan()
            return
        self._unplan()
        self._is_asked_again = False
        queues = tuple(self._waiting)
        try:
            self._looking = self._store.submit(partial(claimable.look_at, queues), write=False)
        except HarnError:  # the store is closed: its consumers are about to hear of it
            self._due_at = None
            self._plan()
            return
        self._looking.add_done_callback(partial(self._looked, mark, self._joined))

    def _looked(
        self, mark: object | None, joined: int, looking: asyncio.Future[claimable.Look]
    ) -> None:
        self._looking = self._mark = self._due_at = None
        if not looking.cancelled() and looking.exception() is None:
            found = looking.result()
            if joined == self._joined:
                self._mark = mark
            if found.due_in is not None:
                self._due_at = self._clock.monotonic() + found.due_in
            for queue, waiting in self._waiting.items():
                if queue in found.ready:
                    for woken in waiting:
                        waiting[woken] = True
                        resolve(woken)
        if not self._waiting:
            return
        if self._is_asked_again:
            self._look()
        else:
            self._plan()
