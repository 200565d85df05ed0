"""The dispatches of this process that wait at one gate; only the first of them asks the store.

This is not the wait queue of `harn.sync`, which grants to its waiters in the order of arrival.
Here nothing is granted: the state is in the store, for all processes, and the first waiter reads
it there. The order is by place (a rank, then a ticket of the store), so a later arrival may be
first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable
from typing import Protocol

from harn.clock import resolve
from harn.triggers.gate_rules import GatePlace

AskStore = Callable[[], Awaitable[bool | int]]
NotePark = Callable[[], None]


class Resting(Protocol):
    """What a queue asks of the gates."""

    async def rest(self, woken: asyncio.Future[None], until_ms: int | None) -> None:
        """Wait until *woken*, until *until_ms*, or for a while."""

    def forget(self, gate: str) -> None:
        """Drop a queue that is empty."""


class GateQueue:
    """The waiters of one gate, in the order of their places."""

    def __init__(self, gates: Resting, gate: str) -> None:
        self._gates = gates
        self._gate = gate
        self._places: list[GatePlace] = []
        """The places of those that wait, in order."""
        self._waiting: dict[GatePlace, asyncio.Future[None]] = {}
        self._number = 0

    def next_number(self) -> int:
        """Return the next place at the end."""
        self._number += 1
        return self._number

    def wake(self) -> None:
        """Let the first waiter ask the store again."""
        if self._places:
            resolve(self._waiting[self._places[0]])

    async def wait(self, mine: GatePlace, attempt: AskStore, parked: NotePark) -> None:
        """Wait until *attempt* returns True; it is called only while *mine* is the first place.

        If it returns a number, that is the time to call it again. *parked* is called before each
        wait. Cancelling leaves the queue.
        """
        loop = asyncio.get_running_loop()
        self._waiting[mine] = loop.create_future()
        insort(self._places, mine)
        try:
            while True:
                until_ms: int | None = None
                if mine == self._places[0]:
                    answer = await attempt()
                    if answer is True:
                        return
                    until_ms = answer if isinstance(answer, int) and answer is not False else None
                    if self._waiting[mine].done():  # woken during the call: its answer is old
                        self._waiting[mine] = loop.create_future()
                        continue
                parked()
                if mine == self._places[0]:
                    await self._gates.rest(self._waiting[mine], until_ms)
                else:
                    await self._waiting[mine]
                self._waiting[mine] = loop.create_future()
        finally:
            del self._waiting[mine]
            del self._places[bisect_left(self._places, mine)]
            if self._places:
                self.wake()
            else:
                self._gates.forget(self._gate)
