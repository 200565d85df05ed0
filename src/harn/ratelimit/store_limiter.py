"""The limiter of one store: collects what callers of this process want, and carries it out.

Everything that is asked for during one operation goes into the next one (`transaction.py`), so
that sixty-four acquires cost one transaction. No task runs here: the end of an operation, a timer
or a new caller begins the next operation.

A caller that is alone is served at once, on the loop's own thread, if the store can do that
quickly (`try_now`). It first asks without a ticket. If there is no room, it asks again like all
other callers and waits in line.

Only the first callers of each line are asked for again: at the time that the last answer gave,
and at least every `POLL` seconds if other processes share the store, because one of them may have
released units. Nothing in the store is locked while a caller waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.batcher import Batcher, Entry, Landing
from harn.clock import resolve
from harn.errors import HarnError, StorageBusy
from harn.graceful_stop import asked, raise_if_asked
from harn.ratelimit.bucket_use import BucketUse
from harn.ratelimit.limiter_batch import Barrier, Corrections, Item, weight, work_of
from harn.ratelimit.process_identity import is_gone
from harn.ratelimit.records import (
    Asking,
    Correction,
    Done,
    Granted,
    LimiterWork,
    NoRoom,
    Pause,
    Remembered,
    Ticket,
    Verdict,
    Waits,
    Want,
)
from harn.ratelimit.transaction import carry_out
from harn.ratelimit.waiting_callers import Caller, WaitingCallers
from harn.ratelimit.wake_times import WakeTimes, pause_after
from harn.storage import limits
from harn.sync import CLOSED, GONE, GRANTED, TIMED_OUT, WAITING, park
from harn.teardown import retrieve

if TYPE_CHECKING:
    from harn.clock import Clock
    from harn.storage import Store

logger: logging.Logger = logging.getLogger("harn.ratelimit")

POLL = 0.25
"""Seconds after which the first caller of a line is asked for again at the latest."""
RENEW = 1.0
"""Seconds between two renewals of our lease, while callers wait."""
BATCH = 512
"""New callers that one operation asks for at most."""
MOST_ON_LOOP = 16
"""Buckets of a request that may be carried out on the loop's thread; more take too long."""
NOTHING = Remembered(None, {})


class StoreLimiter:
    """The requests of this process to one store, which grants and errors show as *shown*.

    *read_now* returns the time in microseconds; without it the store's own time is used.
    *is_shared* tells whether other processes may use the store.
    """

    def __init__(
        self,
        store: Store,
        shown: str,
        clock: Clock,
        owner: str,
        read_now: Callable[[], int] | None,
        *,
        is_shared: bool,
    ) -> None:
        self.store = store
        self.shown = shown
        self.clock = clock
        self.owner = owner
        self.read_now = read_now
        self.use: BucketUse = BucketUse(store, clock.monotonic())
        self._is_shared = is_shared
        self._runs_here = store.runs_here
        self._callers = WaitingCallers()
        self._loop = loop = asyncio.get_running_loop()
        self._batcher: Batcher[Item] = Batcher(
            loop, self._start, self._read, most=BATCH, weigh=weight, failed=self._failed
        )
        self._times = WakeTimes(clock, self._batcher.begin)
        self._renewed = float("-inf")
        """When our lease was last renewed."""
        self._must_rejoin = False
        """Whether our tickets may have been removed, so that they must join their lines again."""
        self._may_have_strays = False
        """Whether an operation has failed: its commit may still have stored tickets."""
        self._is_closed = False
        self._remembered = NOTHING
        """Buckets as the last operation on this thread left them; empty after any other."""

    @property
    def waiting(self) -> int:
        """How many callers of this process wait."""
        return len(self._callers)

    async def ask(self, wants: tuple[Want, ...], timeout: float | None) -> Granted | NoRoom:
        """Wait until all of *wants* are charged, or for *timeout* seconds.

        Cancelling leaves the line, and releases units that were granted before the cancel arrived.
        """
        self._check_open()
        if asked:
            raise_if_asked()
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        place = len(self._batcher.waiting)
        if await self._may_run_here(len(wants)):
            done = self._carry_out_here(asking=(Asking(wants, None, False),))
            if done is not None:
                [verdict] = done.verdicts
                if timeout == 0 or isinstance(verdict, Granted):
                    return verdict  # type: ignore[return-value]
        caller = Caller(wants, deadline, timeout != 0)
        caller.wait_as("acquire", self, self._loop)
        # `_may_run_here` may have waited for a turn. Callers that came in it are served later.
        self._batcher.waiting.insert(place, Entry(caller, None))
        if self._batcher.is_idle and not self._batcher.was_shared:
            self._batcher.begin()  # at once: no other caller is likely to come in this turn
        else:
            self._batcher.wake()
        try:
            await park(caller)
        except BaseException:
            await self._withdraw(caller)
            raise
        assert caller.verdict is not None
        return caller.verdict

    async def correct(self, corrections: Sequence[Correction]) -> list[tuple[int, int] | None]:
        """Carry out *corrections* together; return the row of each, or None if it came too late.

        Cancelling does not stop them.
        """
        self._check_open()
        if await self._may_run_here(len(corrections)):
            done = self._carry_out_here(corrections=corrections)
            if done is not None:
                return done.corrected
        self._callers.wake_first(each.want.key for each in corrections)
        rows: list[tuple[int, int] | None] = await self._carried_out(Corrections(corrections))
        return rows

    async def pause(self, keys: Sequence[str], microseconds: int) -> None:
        """Grant nothing of *keys* for so long, in every process. Cancelling does not stop it."""
        self._check_open()
        await self._carried_out(Pause(tuple(keys), microseconds))

    async def aclose(self) -> None:
        """Remove our tickets from every line; callers that still wait raise an error."""
        if self._is_closed:
            return
        self._is_closed = self._batcher.is_held = True
        self._times.cancel()
        for entry in self._batcher.waiting:
            if entry.answer is not None and not entry.answer.done():
                entry.answer.set_exception(_left())
        arrived = [entry.item for entry in self._batcher.waiting if type(entry.item) is Caller]
        for caller in [*arrived, *self._callers]:
            _fail(caller, _left())
        if self._renewed > float("-inf"):
            try:
                await self.store.run(lambda: limits.drop_owner(self.owner))
            except HarnError as error:
                logger.warning(
                    "rate limits: tickets of this process were not removed, and expire soon: %s",
                    error,
                )

    def _check_open(self) -> None:
        if self._is_closed:
            raise _left()

    async def _carried_out(self, item: Item) -> Any:
        answer = self._batcher.ask(item)
        try:
            # `await answer` would pass a cancel on to the answer, and that withdraws the item.
            await asyncio.wait((answer,))
        except asyncio.CancelledError:
            answer.add_done_callback(retrieve)
            raise
        return answer.result()

    # -- alone: at once, on this thread

    async def _may_run_here(self, buckets: int) -> bool:
        """Tell whether an operation on so many buckets is quick, and no other caller waits.

        If so, it has waited for a turn of the loop, in which no other caller came. Callers that
        did come are served after this one. Cancelling leaves nothing behind.
        """
        if not self._runs_here or buckets > MOST_ON_LOOP or not self._is_quiet():
            return False
        self._batcher.is_held = True
        try:
            await asyncio.sleep(0)
        finally:
            self._batcher.is_held = self._is_closed
            if self._batcher.waiting:
                self._batcher.wake()
        self._check_open()
        return self._is_quiet()

    def _is_quiet(self) -> bool:
        return self._batcher.is_idle and not self._batcher.was_shared and not self._callers

    def _carry_out_here(
        self, asking: Sequence[Asking] = (), corrections: Sequence[Correction] = ()
    ) -> Done | None:
        """Carry it out without an await; None, and nothing is done, if that could take long."""
        remembered, self._remembered = self._remembered, NOTHING
        work = LimiterWork(
            self.owner,
            asking,
            corrections,
            known=self._known_tickets(),
            remembered=None if self.use.is_sweeping else remembered,
        )
        done = self.store.try_now(partial(carry_out, work, self.read_now, is_gone))
        if done is not None:
            begins_sweep = self.use.note(done, self.clock.monotonic())
            self._remembered = NOTHING if begins_sweep else done.remembered or NOTHING
        return done

    # -- one operation after the other

    def _start(self, batch: list[Entry[Item]], landing: Landing) -> bool:
        now = self.clock.monotonic()
        self._choose_callers(batch)
        renews = bool(self._callers) and now - self._renewed >= RENEW
        rejoins = self._must_rejoin and bool(self._callers)
        if not renews and not rejoins and all(type(each.item) is Barrier for each in batch):
            for entry in batch:
                resolve(entry.answer)  # type: ignore[arg-type]
            self._set_timer()
            return False
        known = self._known_tickets()
        work = work_of(batch, self.owner, self._callers, known, now, renews=renews, rejoins=rejoins)
        self._must_rejoin = False
        self._remembered = NOTHING
        if renews:
            self._renewed = now
        self.store.submit(partial(carry_out, work, self.read_now, is_gone), into=landing)
        return True

    def _choose_callers(self, batch: list[Entry[Item]]) -> None:
        """Put the callers that are due first in *batch*, and remove cancelled callers from it."""
        self._callers.due.update(dict.fromkeys(self._times.take_due()))
        due = self._callers.take_due()
        kept = [each for each in batch if type(each.item) is not Caller or each.item.state != GONE]
        batch[:] = [Entry(caller, None) for caller in due]
        batch += kept
        for entry in batch:
            if type(entry.item) is Caller:
                entry.item.is_asked = True

    def _known_tickets(self) -> frozenset[int] | None:
        """Return the tickets that callers wait with, if the store may hold others of ours."""
        if not self._may_have_strays:
            return None
        return frozenset(ticket.number for ticket in self._callers.tickets)

    def _read(self, batch: list[Entry[Item]], done: Done) -> list[Any]:
        """Pass each caller its verdict, and return the results of all other items."""
        now = self.clock.monotonic()
        verdicts, rows = iter(done.verdicts), iter(done.corrected)
        results: list[Any] = []
        callers: list[Caller] = []
        for entry in batch:
            item, result = entry.item, None
            if type(item) is Caller:
                callers.append(item)
                self._take_verdict(item, next(verdicts), now)
            elif type(item) is Corrections:
                result = [next(rows) for _ in item.corrections]
            results.append(result)
        for caller in callers:
            if caller.ticket is not None and caller.ask_at is None and caller.state == WAITING:
                self._plan_if_first(caller, now)
        self.use.note(done, now)  # `_remembered` is empty already: see `_start`
        self._must_rejoin = done.forgotten
        if self._batcher.waiting or self._callers.due or self._must_rejoin:
            self._batcher.wake()
        else:
            self._set_timer()
        return results

    def _take_verdict(self, caller: Caller, verdict: Verdict, now: float) -> None:
        caller.is_asked = False
        if isinstance(verdict, Waits):
            if caller.ticket is None:
                caller.ticket = verdict.ticket
                self._callers.add(caller)
                self._renewed = now  # an operation that joins a line renews our lease
            self._callers.due.pop(caller, None)
            if caller.state == GONE:
                self._leave(caller)
            else:
                self._plan(caller, verdict, now)
            return
        caller.verdict = verdict
        if caller.state != GONE:
            caller.wake(GRANTED if isinstance(verdict, Granted) else TIMED_OUT)
        elif isinstance(verdict, Granted):
            self._release(caller, verdict)
        if caller.ticket is not None:
            self._callers.remove(caller)

    def _plan(self, caller: Caller, verdict: Waits, now: float) -> None:
        poll = POLL * max(1.0, self._callers.lines / 100) if self._is_shared else None
        pause, caller.backoff = pause_after(verdict, caller.backoff, poll)
        self._times.plan(caller, now + pause)

    def _plan_if_first(self, caller: Caller, now: float) -> None:
        """Ask soon for *caller*, if the earlier caller of this process has left the line."""
        if self._callers.is_first(caller):
            self._plan(caller, Waits(0, 0, True), now)

    def _failed(self, entries: list[Entry[Item]], error: BaseException) -> None:
        """Fail the callers of an operation that failed; try all other items again."""
        if isinstance(error, asyncio.CancelledError):
            error = HarnError("the store was closed")
        self._may_have_strays = self._must_rejoin = True
        again = [entry for entry in entries if type(entry.item) is not Caller]
        self._batcher.waiting.extendleft(reversed(again))
        now = self.clock.monotonic()
        for entry in entries:
            if type(entry.item) is Caller:
                self._fail_or_ask_again(entry.item, error, now)
        self._set_timer()

    def _fail_or_ask_again(self, caller: Caller, error: BaseException, now: float) -> None:
        caller.is_asked = False
        has_time = caller.deadline is None or now < caller.deadline
        is_waiting = caller.ticket is not None and caller.state == WAITING
        if is_waiting and has_time and isinstance(error, StorageBusy):
            self._times.plan(caller, now + POLL)
            return
        _fail(caller, error)
        if caller.ticket is not None:
            self._leave(caller)

    def _set_timer(self) -> None:
        """Begin the next operation when a caller, our lease or a retry is due."""
        if self._is_closed:
            return
        also_at = None
        if self._batcher.waiting:
            also_at = self.clock.monotonic() + POLL
        if self._is_shared and self._callers:
            renew_at = self._renewed + RENEW
            also_at = renew_at if also_at is None else min(also_at, renew_at)
        self._times.set_timer(also_at)

    # -- what a caller leaves behind

    async def _withdraw(self, caller: Caller) -> None:
        """Remove what a cancelled *caller* has in the store, and wait until that is done.

        A caller that no operation has asked for yet has nothing there.
        """
        if self._is_closed or caller.state not in (WAITING, GRANTED):
            return
        if caller.withdraw():
            assert isinstance(caller.verdict, Granted)
            self._release(caller, caller.verdict)
        elif caller.is_asked:
            pass  # `_take_verdict` releases its units or its ticket when the operation ends
        elif caller.ticket is not None:
            self._leave(caller)
        else:
            return
        undone = self._batcher.ask(Barrier())
        while not undone.done():
            try:
                await asyncio.wait((undone,))
            except asyncio.CancelledError:
                continue  # `ask` raises the first cancel again after this
        retrieve(undone)

    def _release(self, caller: Caller, granted: Granted) -> None:
        """Release the units that were granted to *caller*, which has been cancelled."""
        corrections = [
            Correction(want, row[0], row[1], granted.at, 0)
            for want, row in zip(caller.wants, granted.rows, strict=True)
            if row is not None
        ]
        self._callers.wake_first(want.key for want in caller.wants)
        self._undo(Corrections(corrections))

    def _leave(self, caller: Caller) -> None:
        """Take *caller*, which no longer waits, out of its lines."""
        assert caller.ticket is not None
        self._callers.remove(caller)
        self._undo(Ticket(caller.ticket, caller.wants))

    def _undo(self, item: Corrections | Ticket) -> None:
        # At the front, so that it is carried out before the barrier that `_withdraw` waits for.
        self._batcher.waiting.appendleft(Entry(item, None))


def _fail(caller: Caller, error: BaseException) -> None:
    if caller.state == WAITING:
        caller.state = CLOSED
        if not caller.future.done():
            caller.future.set_exception(error)


def _left() -> HarnError:
    return HarnError("this Runtime has been closed; open a new one")
