"""The gates: each decision of `gate_rules.py` is applied in its own transaction.

State is in the store, so all processes that share a store share its gates. A dispatch
that waits for a slot or for room in a window is in a queue of this process; only the first of the
queue asks the store. What a dispatch holds is released however it ends. What a killed process
held is free half a minute after its last renewal.

A cancel does not interrupt what adds a mark or removes one. The store may have made a mark whose
ticket was not returned, and no caller could release it: the gate would stay closed while the
process lives. For the same reason a mark that the store failed to remove is removed with the next
operation of this process at its gate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from harn.clock import resolve, sleep_until
from harn.errors import HarnError
from harn.storage import Store
from harn.storage.triggers import GateChange, Mark, at_gate
from harn.teardown import note
from harn.triggers.batch_gate import BatchState, lead_batch
from harn.triggers.event import TriggerEvent
from harn.triggers.gate_queue import GateQueue, NotePark
from harn.triggers.gate_rules import (
    NO_FLOW,
    Concurrency,
    Flow,
    GatePlace,
    GateWindow,
    SkipReason,
    gate_key,
    has_turn,
    within_window,
)

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.triggers")

POLL = 0.5
"""Seconds after which the first waiter asks the store again, if nothing woke it: a slot may have
been released by another process."""
LAST_TICKET = 1 << 62
"""A ticket after every other."""

Decide = Callable[[list[Mark], int], Sequence[GateChange]]


class Passage(msgspec.Struct):
    """An event's result at the gates of its binding: what it holds, or why it was skipped."""

    skipped: SkipReason | None = None
    members: tuple[int, ...] = ()
    """The envelopes of the batch that is dispatched with this event, including its own."""
    holds: list[tuple[str, str, tuple[int, ...]]] = []
    """What to release: the record's kind, the gate and the tickets."""


class Entrant(msgspec.Struct, frozen=True):
    """An event at the gates of its binding."""

    binding_id: str
    event: TriggerEvent
    envelope: int
    flow: Flow
    parked: NotePark
    told_until: Callable[[str, int], None] | None = None
    """Receives the gate and the time until which it is closed, where that is known."""

    def gate(self, name: str, key: str | None) -> str:
        """Return the name of this event's gate."""
        return gate_key(self.binding_id, name, key, self.event)


class Gates:
    """The gates of a runtime's triggers, for the owner *owner*."""

    def __init__(self, runtime: Runtime, owner: str) -> None:
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._owner = owner
        self._queues: dict[str, GateQueue] = {}
        self._followers: dict[str, dict[asyncio.Future[None], None]] = {}
        """Waiters whose event is in another member's batch, by gate: woken when it has ended."""
        self._undropped: dict[str, list[GateChange]] = {}
        """What the store failed to drop, by gate: the next operation at the gate drops it."""

    async def enter(self, entrant: Entrant) -> Passage:
        """Pass every gate in order, waiting where a gate requires it, or be skipped.

        Cancelling releases what was held so far.
        """
        passage = Passage()
        if entrant.flow == NO_FLOW:
            return passage
        try:
            for step in (
                self._batch,
                self._debounce,
                self._rate_limit,
                self._throttle,
                self._singleton,
                self._concurrency,
            ):
                await step(entrant, passage)
                if passage.skipped:
                    await self.leave(entrant, passage)
                    break
        except BaseException:
            await self.leave(entrant, passage)
            raise
        return passage

    async def leave(self, entrant: Entrant, passage: Passage) -> None:
        """Release everything that *passage* holds. A second call does nothing.

        Cancelling does not stop it: the cancel is raised at the end. A store that fails is only
        logged, for the event's outcome stands: `_at` drops later what is still held.
        """
        cancelled: asyncio.CancelledError | None = None
        while passage.holds:
            kind, gate, tickets = passage.holds.pop()
            drop = GateChange(kind, "drop", tickets)
            dropped: list[list[int]] = []
            failed: BaseException | None = None
            try:
                await self._at(gate, entrant, partial(_drop, drop), dropped.append, only_first=True)
            except asyncio.CancelledError as cancel:
                cancelled, failed = cancel, cancel.__cause__
            except HarnError as error:
                failed = error
            if not dropped:
                self._undropped.setdefault(gate, []).append(drop)
                logger.warning(
                    "%s: event %s still holds its %s gate, until the next event there: %s",
                    *(entrant.binding_id, entrant.event.id, gate.partition("\x1f")[0], failed),
                )
            self._wake(gate)
            for follower in self._followers.pop(gate, ()):
                resolve(follower)
        if cancelled is not None:
            raise cancelled

    async def pause(self, entrant: Entrant, passage: Passage) -> None:
        """Release the slot while a retry waits; `resume` asks for it again.

        Cancelling does not stop it: the cancel is raised at the end.
        """
        slots = [hold for hold in passage.holds if hold[0] == "concurrency_released"]
        for hold in slots:
            passage.holds.remove(hold)
            await self.leave(entrant, Passage(holds=[hold]))

    async def resume(self, entrant: Entrant, passage: Passage) -> None:
        """Wait for a slot again after a `pause`. Cancelling takes none."""
        if not any(hold[0] == "concurrency_released" for hold in passage.holds):
            await self._concurrency(entrant, passage)

    # -- each gate -----------------------------------------------------------------------------

    async def _batch(self, entrant: Entrant, passage: Passage) -> None:
        batch = entrant.flow.batch
        if batch is None:
            return
        gate = entrant.gate("batch", batch.key)
        hold = partial(_hold, passage, "batch_dispatched", gate)
        [ticket] = await self._at(
            gate, entrant, lambda marks, now: [GateChange("batch_enqueued", "add")], hold
        )
        self._wake(gate)
        state = BatchState()

        async def look() -> bool | int:
            await self._at(gate, entrant, partial(lead_batch, batch, ticket, state))
            if state.members is None and not state.merged:
                entrant.parked()
            return state.until_ms if state.is_collecting else True

        await self._queue(gate).wait(GatePlace(0, ticket), look, entrant.parked)
        while state.members is None and not state.merged:
            # Another member dispatches the batch that this event is in. If that member's process
            # dies, the batch collects events again.
            await self._after_batch(gate)
            if await look() is not True:
                await self._queue(gate).wait(GatePlace(0, ticket), look, entrant.parked)
        if state.merged:
            passage.holds.clear()
            passage.skipped = "batch_merged"
        elif state.members is not None:
            tickets = tuple(mark.ticket for mark in state.members)
            passage.members = tuple(mark.envelope for mark in state.members)
            passage.holds[-1] = ("batch_dispatched", gate, tickets)

    async def _debounce(self, entrant: Entrant, passage: Passage) -> None:
        debounce = entrant.flow.debounce
        if debounce is None:
            return
        gate = entrant.gate("debounce", debounce.key)
        seen = GateChange("debounce_seen", "replace")
        [ticket] = await self._at(gate, entrant, lambda marks, now: [seen])
        entrant.parked()
        clock = self._runtime.clock
        await sleep_until(clock, clock.monotonic() + debounce.period_ms / 1000)

        def newest(marks: list[Mark], now: int) -> Sequence[GateChange]:
            mine = any(mark.ticket == ticket for mark in marks)
            return [GateChange("debounce_selected", "clear")] if mine else []

        if not await self._at(gate, entrant, newest):
            passage.skipped = "debounced"

    async def _rate_limit(self, entrant: Entrant, passage: Passage) -> None:
        window = entrant.flow.rate_limit
        if window is None:
            return
        gate = entrant.gate("rate_limit", window.key)
        full_until = await self._take_room(
            gate, entrant, window, "rate_limit_allowed", "rate_limit_blocked"
        )
        if full_until is not None:
            passage.skipped = "rate_limited"

    async def _throttle(self, entrant: Entrant, passage: Passage) -> None:
        window = entrant.flow.throttle
        if window is None:
            return
        gate = entrant.gate("throttle", window.key)
        queue = self._queue(gate)
        place = GatePlace(0, queue.next_number())
        told = False

        async def attempt() -> bool | int:
            nonlocal told
            blocked = None if told else "throttle_wait"
            full_until = await self._take_room(gate, entrant, window, "throttle_acquired", blocked)
            if full_until is None:
                return True
            told = True
            entrant.parked()
            if entrant.told_until is not None:
                entrant.told_until(gate, full_until)
            return full_until

        await queue.wait(place, attempt, entrant.parked)

    async def _take_room(
        self, gate: str, entrant: Entrant, window: GateWindow, admits: str, blocks: str | None
    ) -> int | None:
        """Take room in a window and return None; return the time to ask again if it is full.

        *admits* and *blocks* are the kinds of the records that are written; None writes nothing.
        """
        full_until: int | None = None

        def decide(marks: list[Mark], now: int) -> Sequence[GateChange]:
            nonlocal full_until
            wait = within_window(window, [mark.at_ms for mark in marks], now)
            full_until = None if wait is None else wait.until_ms
            if wait is None:
                return [GateChange(admits, "add", prune_ms=window.period_ms)]
            if blocks is None:
                return []
            return [GateChange(blocks, "note", details={"delay_ms": wait.until_ms - now})]

        await self._at(gate, entrant, decide)
        return full_until

    async def _singleton(self, entrant: Entrant, passage: Passage) -> None:
        singleton = entrant.flow.singleton
        if singleton is None:
            return
        gate = entrant.gate("singleton", singleton.key)

        free: list[bool] = []

        def decide(marks: list[Mark], now: int) -> Sequence[GateChange]:
            free[:] = [not marks]
            if marks:
                return [GateChange("singleton_skipped", "note")]
            return [GateChange("singleton_acquired", "add", held=True)]

        def note(tickets: list[int]) -> None:
            if free[0]:
                _hold(passage, "singleton_released", gate, tickets)
            else:
                passage.skipped = "singleton_active"

        await self._at(gate, entrant, decide, note)

    async def _concurrency(self, entrant: Entrant, passage: Passage) -> None:
        slots = entrant.flow.concurrency
        if slots is None:
            return
        gate = entrant.gate("concurrency", slots.key)
        rank = entrant.flow.order.rank(entrant.event) if entrant.flow.order else 0
        entered: list[bool] = []

        def join(marks: list[Mark], now: int) -> Sequence[GateChange]:
            at_once = _has_slot(slots, marks, GatePlace(rank, LAST_TICKET))
            entered[:] = [at_once]
            kind = "concurrency_acquired" if at_once else "concurrency_waiting"
            return [GateChange(kind, "add", rank=rank, held=at_once)]

        hold = partial(_hold, passage, "concurrency_released", gate)
        [ticket] = await self._at(gate, entrant, join, hold, only_first=True)
        if entered[0]:
            return
        entrant.parked()
        mine = GatePlace(rank, ticket)

        async def attempt() -> bool | int:
            take = partial(_take_slot, slots, mine)
            return bool(await self._at(gate, entrant, take, only_first=True))

        await self._queue(gate).wait(mine, attempt, entrant.parked)

    # -- waiting -------------------------------------------------------------------------------

    async def _at(
        self,
        gate: str,
        entrant: Entrant,
        decide: Decide,
        written: Callable[[list[int]], None] | None = None,
        only_first: bool = False,
    ) -> list[int]:
        """Carry *decide* out at *gate*; return the tickets, which *written* gets first.

        *only_first* says what *decide* must see (`at_gate`).

        It runs to its end, and a cancel is raised afterwards, also if the store failed: a mark that
        was made while the caller was cancelled would otherwise hold its slot as long as this
        process lives.
        """
        late = self._undropped.get(gate, [])
        if late:
            decide = partial(_dropping, late, decide)
            only_first = False  # the first may be one that is dropped
        envelope = entrant.envelope
        answer = self._store.submit(
            lambda: at_gate(gate, self._owner, envelope, decide, only_first=only_first)
        )
        self._undropped.pop(gate, None)
        cancelled: asyncio.CancelledError | None = None
        while not answer.done():
            try:
                await asyncio.wait((answer,))
            except asyncio.CancelledError as cancel:
                cancelled = cancel
        try:
            tickets = answer.result()
        except BaseException as error:
            if late:
                self._undropped.setdefault(gate, []).extend(late)
            if cancelled is None:
                raise
            note(cancelled, (error,))
            raise cancelled from error
        tickets = tickets[: len(tickets) - len(late)]
        if written is not None:
            written(tickets)
        if cancelled is not None:
            raise cancelled
        return tickets

    def _queue(self, gate: str) -> GateQueue:
        queue = self._queues.get(gate)
        if queue is None:
            queue = self._queues[gate] = GateQueue(self, gate)
        return queue

    def forget(self, gate: str) -> None:
        """Drop the queue of *gate*, which is empty."""
        self._queues.pop(gate, None)

    def _wake(self, gate: str) -> None:
        queue = self._queues.get(gate)
        if queue is not None:
            queue.wake()

    async def _after_batch(self, gate: str) -> None:
        """Wait until a batch of *gate* has ended in this process, or for half a second."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._followers.setdefault(gate, {})[woken] = None
        try:
            await self.rest(woken, None)
        finally:
            # A batch of another process ends without a `leave` here, which would forget them all.
            if waiting := self._followers.get(gate):
                waiting.pop(woken, None)
                if not waiting:
                    del self._followers[gate]

    async def rest(self, woken: asyncio.Future[None], until_ms: int | None) -> None:
        """Wait until *woken* is done, until *until_ms*, or for `POLL` seconds.

        Cancelling leaves nothing behind.
        """
        clock = self._runtime.clock
        timers = [clock.call_at(clock.monotonic() + POLL, partial(resolve, woken), background=True)]
        if until_ms is not None:
            left = max(0.0, (until_ms - clock.now_ms()) / 1000)
            timers.append(clock.call_at(clock.monotonic() + left, partial(resolve, woken)))
        try:
            await woken
        finally:
            for timer in timers:
                timer.cancel()


def _drop(drop: GateChange, marks: list[Mark], now: int) -> Sequence[GateChange]:
    return [drop]


def _dropping(
    late: Sequence[GateChange], decide: Decide, marks: list[Mark], now: int
) -> Sequence[GateChange]:
    """Decide as if the marks of *late* were gone, and drop them after everything else."""
    gone = {ticket for drop in late for ticket in drop.tickets}
    return [*decide([mark for mark in marks if mark.ticket not in gone], now), *late]


def _hold(passage: Passage, kind: str, gate: str, tickets: Sequence[int]) -> None:
    passage.holds.append((kind, gate, tuple(tickets)))


def _has_slot(slots: Concurrency, marks: list[Mark], mine: GatePlace) -> bool:
    waiting = [GatePlace(mark.rank, mark.ticket) for mark in marks if not mark.held]
    return has_turn(mine, waiting, sum(mark.held for mark in marks), slots.max)


def _take_slot(
    slots: Concurrency, mine: GatePlace, marks: list[Mark], now: int
) -> Sequence[GateChange]:
    if not _has_slot(slots, marks, mine):
        return []
    return [GateChange("concurrency_acquired", "hold", (mine.ticket,), rank=mine.rank)]
