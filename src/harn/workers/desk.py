"""Where a process meets a queue: what is asked for at the same time is carried out together.

Enqueues, settlements and claims that meet while an operation is under way share the next one, in
that order and in one transaction. So a hundred acks and the claim of the next hundred jobs cost
one commit, on every engine, and nothing waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from harn.storage import (
    Claimed,
    Claiming,
    JobDraft,
    Settlement,
    SettlementResult,
    Store,
    Work,
    WorkDone,
    work_on,
)

if TYPE_CHECKING:
    from harn.runtime import Runtime

MOST_JOBS = 2000
MOST_BYTES = 32 * 1024 * 1024

Wanted = Callable[[], Claiming | None]
"""Tells what is to be claimed, asked when the operation begins; None for nothing after all."""


class Answer(Protocol):
    """Where what became of a settlement goes: a future, or whoever needs none to be told."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, result: SettlementResult, /) -> None:
        """Take the answer; called on the loop, and must not raise."""

    def set_exception(self, error: BaseException, /) -> None:
        """Take it that there is none, and why."""

    def cancel(self) -> object:
        """Take it that there will be none."""


class _Order(msgspec.Struct, eq=False):
    """Something asked for, and whoever waits for it."""

    wanted: Any
    answer: Answer | asyncio.Future[Any]


class Desk:
    """One queue, as the tasks of one runtime use it."""

    def __init__(self, runtime: Runtime, queue: str) -> None:
        self.queue = queue
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._enqueues: list[_Order] = []
        self._settlements: list[_Order] = []
        self._claims: list[_Order] = []
        self._scheduled = False
        self._busy = False

    def enqueue(self, jobs: Sequence[JobDraft]) -> asyncio.Future[list[tuple[int, bool]]]:
        """Ask for *jobs* to be entered, all or none."""
        return self._ask(self._enqueues, jobs)

    def settle(self, settlement: Settlement) -> asyncio.Future[SettlementResult]:
        """Ask for something to be done with a claim."""
        return self._ask(self._settlements, settlement)

    def settle_into(self, settlement: Settlement, answer: Answer) -> None:
        """Ask the same, without a future: what became of it goes to *answer*."""
        self._put(self._settlements, _Order(settlement, answer))

    def claim(self, wanted: Wanted) -> asyncio.Future[Claimed]:
        """Ask for jobs. Cancelling the answer gives back what was claimed for it."""
        return self._ask(self._claims, wanted)

    def _ask(self, orders: list[_Order], wanted: Any) -> asyncio.Future[Any]:
        self._runtime.check_here()
        answer: asyncio.Future[Any] = self._runtime.loop.create_future()
        self._put(orders, _Order(wanted, answer))
        return answer

    def _put(self, orders: list[_Order], order: _Order) -> None:
        orders.append(order)
        if not self._busy and not self._scheduled:
            # Not at once: whoever runs in the same turn of the loop shares the operation.
            self._scheduled = True
            self._runtime.loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._scheduled = False
        if self._busy:
            return
        enqueues = _taken(self._enqueues, _weight)
        settlements = _taken(self._settlements, lambda _: (1, 0))
        claims = _taken(self._claims, lambda _: (1, 0))
        asked = [(order, claiming) for order in claims if (claiming := order.wanted()) is not None]
        for order in claims:
            if not any(order is one for one, _ in asked):
                _answer(order, Claimed([]))
        if not (enqueues or settlements or asked):
            return
        self._busy = True
        jobs = [job for order in enqueues for job in order.wanted]
        items = [order.wanted for order in settlements]
        claimings = [claiming for _, claiming in asked]
        work = Work(jobs, items, claimings, self._runtime.settings.dedupe_window_ms)
        orders = (enqueues, settlements, [order for order, _ in asked])
        try:
            answer = self._store.submit(partial(work_on, self.queue, work, self._runtime.ids.new))
        except Exception as error:
            self._failed(orders, error)
            return
        answer.add_done_callback(lambda done: self._landed(orders, done))

    def _landed(self, orders: tuple[list[_Order], ...], done: asyncio.Future[WorkDone]) -> None:
        if done.cancelled():
            self._failed(orders, asyncio.CancelledError())
            return
        error = done.exception()
        if error is not None:
            self._failed(orders, error)
            return
        enqueues, settlements, claims = orders
        result = done.result()
        taken = 0
        for order in enqueues:
            count = len(order.wanted)
            _answer(order, result.entered[taken : taken + count])
            taken += count
        for order, settled in zip(settlements, result.settled, strict=True):
            _answer(order, settled)
        for order, claimed in zip(claims, result.claimed, strict=True):
            if order.answer.done():
                self._give_back(claimed)
            _answer(order, claimed)
        self._go_on()

    def _failed(self, orders: tuple[list[_Order], ...], error: BaseException) -> None:
        for order in (order for group in orders for order in group):
            if not order.answer.done():
                if isinstance(error, asyncio.CancelledError):
                    order.answer.cancel()
                else:
                    order.answer.set_exception(error)
        self._go_on()

    def _go_on(self) -> None:
        self._busy = False
        if self._enqueues or self._settlements or self._claims:
            self._scheduled = True
            self._runtime.loop.call_soon(self._begin)

    def _give_back(self, claimed: Claimed) -> None:
        for job in claimed.jobs:
            release = Settlement(
                "release", job.id, job.claim_id, "", reason="the claimer was cancelled"
            )
            self.settle(release).add_done_callback(_look_away)


class Desks:
    """The desks of a runtime, by queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._desks: dict[str, Desk] = {}

    def of(self, queue: str) -> Desk:
        """Return the desk of *queue*."""
        desk = self._desks.get(queue)
        if desk is None:
            desk = self._desks[queue] = Desk(self._runtime, queue)
        return desk


def _taken(orders: list[_Order], weight: Callable[[Any], tuple[int, int]]) -> list[_Order]:
    """Take from *orders* what fits into one operation, leaving out what nobody waits for."""
    taken: list[_Order] = []
    jobs = size = used = 0
    for order in orders:
        if taken and (jobs >= MOST_JOBS or size >= MOST_BYTES):
            break
        used += 1
        if not order.answer.done():
            more = weight(order.wanted)
            jobs, size = jobs + more[0], size + more[1]
            taken.append(order)
    del orders[:used]
    return taken


def _weight(jobs: Sequence[JobDraft]) -> tuple[int, int]:
    return len(jobs), sum(len(job.payload) for job in jobs)


def _answer(order: _Order, value: Any) -> None:
    if not order.answer.done():
        order.answer.set_result(value)


def _look_away(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()
