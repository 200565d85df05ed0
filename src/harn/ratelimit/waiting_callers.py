"""The line of this process before one store: who has come, who waits, and when to ask again.

Callers come and wait on a future. Everything they want between two operations is carried out by
the next one (`transaction.py`), so sixty-four acquires cost one transaction. There is no task
here: an operation's answer, a timer or a new caller sets the next operation off.

A caller who is alone is served at once, on the loop's own thread, if the store has a way that
cannot take long (`try_now`). It asks as one who would not wait; if there is no room, it joins the
others on the way above.

Of those who wait in this process only the first in every line is asked for, at the instant the
last answer gave, and at least every `POLL` seconds where other processes share the store: one of
them may have given units back. Nothing is held while anybody sleeps.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from harn.clock import Timer, resolve
from harn.errors import HarnError, StorageBusy
from harn.graceful import asked, parked, raise_if_asked
from harn.ratelimit.process_identity import is_gone
from harn.ratelimit.transaction import (
    Asking,
    Correction,
    Done,
    Granted,
    Refused,
    Remembered,
    Waits,
    Want,
    Work,
    carry_out,
)
from harn.storage import limits

if TYPE_CHECKING:
    from harn.clock import Clock
    from harn.storage import Store

logger = logging.getLogger("harn.ratelimit")

POLL = 0.25
"""Seconds after which the first of a line asks again, whatever it was told."""
RENEW = 1.0
BATCH = 512
TOGETHER = 64
"""How many that wait in one line are asked for at once."""
FEW = 16
"""Buckets of a request that may be served on the loop's thread."""
SWEEP = 60.0
FORGET_US = 3_600_000_000
SOONEST, LATEST = 0.001, 0.032
"""Seconds between two looks at a line in which somebody else's turn has come."""
EPSILON = 1e-9
"""Seconds that a timer may come early, by the rounding of floats."""
NOTHING = Remembered(None, {})
MOST_SHOWN = 1000
"""Buckets whose use is remembered for the metrics."""

ARRIVED, ASKED, WAITING, ENDED = range(4)


class Pending:
    """One caller: what it wants, where it stands, and the future that wakes it."""

    __slots__ = (
        "backoff",
        "deadline",
        "future",
        "gone",
        "state",
        "stays",
        "ticket",
        "verdict",
        "wake",
        "wants",
    )

    def __init__(self, wants: tuple[Want, ...], deadline: float | None, stays: bool) -> None:
        self.wants = wants
        self.deadline = deadline
        self.stays = stays
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.state = ARRIVED
        self.ticket: int | None = None
        self.verdict: Granted | Refused | None = None
        self.wake: float | None = None
        self.backoff = 0.0
        self.gone = False
        """Whether its caller was cancelled: whatever it gets is given back."""


@dataclass(slots=True)
class Batch:
    """What one operation was asked to do, and who waits for it."""

    asked: list[Pending] = field(default_factory=list)
    corrections: list[tuple[Correction, asyncio.Future[tuple[int, int] | None] | None]] = field(
        default_factory=list
    )
    pauses: list[tuple[str, int, asyncio.Future[None]]] = field(default_factory=list)
    leaving: list[tuple[int, tuple[Want, ...]]] = field(default_factory=list)
    cleaned: list[asyncio.Future[None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.asked or self.corrections or self.pauses or self.leaving or self.cleaned)


class Line:
    """Everybody of this process who wants something of one store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        owner: str,
        read_now: Callable[[], int] | None,
        *,
        shared: bool,
    ) -> None:
        self.store = store
        self.clock = clock
        self.owner = owner
        self.use: dict[str, tuple[int, float]] = {}
        """Units that counted when we last looked, and until when (by our clock) any will."""
        self._read_now = read_now
        self._shared = shared
        self._arrived: list[Pending] = []
        self._next = Batch()
        self._queues: dict[str, OrderedDict[Pending, None]] = {}
        self._named: dict[str, Counter[Want]] = {}
        """The rules of those in `_queues`, each as what a request for one unit of it wants."""
        self._due: dict[Pending, None] = {}
        self._timers: list[tuple[float, int, Pending]] = []
        self._timer_count = 0
        self._timer: tuple[float, Timer] | None = None
        self._waiting: dict[Pending, None] = {}
        self._renewed = float("-inf")
        self._rejoin = False
        self._suspicious = False
        """Whether an operation has failed: it may have left tickets that we do not know of."""
        self._swept = clock.monotonic()
        self._alone = True
        """Whether the last operation served one caller: then the next does not wait for more."""
        self._busy = False
        self._kicked = False
        self._closed = False
        self._sweeping = False
        self._remembered = NOTHING
        """Buckets as the last operation on this thread left them; any other makes us forget."""

    async def ask(self, wants: tuple[Want, ...], timeout: float | None) -> Granted | Refused:
        """Wait until all of *wants* are charged, or for *timeout* seconds.

        Cancelling returns the place in line, and whatever was charged at that moment.
        """
        self._check_open()
        if asked:
            raise_if_asked()
        deadline = None if timeout is None else self.clock.monotonic() + timeout
        place = len(self._arrived)
        if await self._is_alone(len(wants)):
            done = self._at_once(asking=(Asking(wants, None, False),))
            if done is not None:
                [verdict] = done.verdicts
                if timeout == 0 or isinstance(verdict, Granted):
                    return verdict  # type: ignore[return-value]
        pending = Pending(wants, deadline, timeout != 0)
        self._arrived.insert(place, pending)
        if self._is_free():
            self._begin()  # nobody else is likely to come in this turn of the loop
        else:
            self._kick()
        try:
            with parked(pending.future):
                await pending.future
        except BaseException:
            await self._withdraw(pending)
            raise
        assert pending.verdict is not None
        return pending.verdict

    async def correct(self, corrections: Sequence[Correction]) -> list[tuple[int, int] | None]:
        """Carry *corrections* out together; each answers its row, None when it came too late."""
        self._check_open()
        if await self._is_alone(len(corrections)):
            done = self._at_once(corrections=corrections)
            if done is not None:
                return done.corrected
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in corrections]
        self._next.corrections += zip(corrections, answers, strict=True)
        self._wake_lines(want.key for want, *_ in corrections)
        self._kick()
        found: list[tuple[int, int] | None] = await asyncio.gather(*answers)
        return found

    async def pause(self, keys: Sequence[str], microseconds: int) -> None:
        """Admit nothing to *keys* for a while, in every process."""
        self._check_open()
        done = asyncio.get_running_loop().create_future()
        self._next.pauses += [(key, microseconds, done) for key in keys]
        self._kick()
        await done

    @property
    def waiting(self) -> int:
        """How many of this process wait."""
        return len(self._waiting)

    async def aclose(self) -> None:
        """Give every place back; whoever still waits gets an error."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer[1].cancel()
        for pending in [*self._arrived, *self._waiting]:
            if not pending.future.done():
                pending.future.set_exception(HarnError("this Runtime has been left"))
        if self._renewed > float("-inf"):
            try:
                await self.store.run(lambda: limits.drop_owner(self.owner))
            except HarnError as error:
                logger.warning("places in line were not given back: %s", error)

    def _check_open(self) -> None:
        if self._closed:
            raise HarnError("this Runtime has been left; open a new one")

    # -- nobody else: at once, on this thread

    async def _is_alone(self, buckets: int) -> bool:
        """Tell, a turn of the loop later, whether nobody else of this process wants anything.

        Whoever comes in that turn stands behind. Cancelling leaves nothing behind.
        """
        is_quick = self.store.driver.runs_here and buckets <= FEW
        if not is_quick or not self._is_free() or self._waiting:
            return False
        self._kicked = True
        try:
            await asyncio.sleep(0)
        finally:
            self._kicked = False
            if self._arrived or self._next:
                self._kick()
        self._check_open()
        return self._is_free() and not self._waiting

    def _is_free(self) -> bool:
        return self._alone and not self._busy and not self._kicked

    def _at_once(
        self, asking: Sequence[Asking] = (), corrections: Sequence[Correction] = ()
    ) -> Done | None:
        """Carry it out between two awaits; None, and nothing was done, if that may take long."""
        remembered, self._remembered = self._remembered, NOTHING
        work = Work(
            self.owner,
            asking,
            corrections,
            known=self._known(),
            remembered=None if self._sweeping else remembered,
        )
        read_now = self._read_now
        done = self.store.driver.try_now(lambda: carry_out(work, read_now, is_gone))
        if done is not None:
            self._remembered = done.remembered or NOTHING
            self._note(done, self.clock.monotonic())
        return done

    # -- one operation after the other

    def _kick(self) -> None:
        if not self._kicked and not self._busy and not self._closed:
            self._kicked = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._kicked = False
        if self._busy or self._closed:
            return
        self._ring()
        batch, self._next = self._next, Batch()
        batch.asked = [*self._due_now(), *self._arrivals()]
        now = self.clock.monotonic()
        renews = bool(self._waiting) and now - self._renewed >= RENEW
        rejoins = self._rejoin and bool(self._waiting)
        if not (
            batch.asked or batch.corrections or batch.pauses or batch.leaving or renews or rejoins
        ):
            for waiter in batch.cleaned:
                resolve(waiter)
            self._set_timer()
            return
        work = Work(
            self.owner,
            [self._asking(pending, now) for pending in batch.asked],
            [correction for correction, _ in batch.corrections],
            [(key, length) for key, length, _ in batch.pauses],
            batch.leaving,
            [(each.ticket, each.wants) for each in self._waiting if each.ticket is not None]
            if rejoins
            else (),
            renews,
            self._known(),
            self._standing(batch.asked),
        )
        self._rejoin = False
        self._alone = len(batch.asked) == 1 and not self._arrived
        self._busy = True
        self._remembered = NOTHING
        if renews:
            self._renewed = now
        read_now = self._read_now
        try:
            answer = self.store.driver.submit(lambda: carry_out(work, read_now, is_gone))
        except HarnError as error:
            self._busy = False
            self._failed(batch, error)
            return
        if answer.done():
            self._finish(batch, answer)
        else:
            answer.add_done_callback(lambda answer: self._finish(batch, answer))

    def _known(self) -> frozenset[int] | None:
        """Return our tickets, if the store may hold others of ours."""
        if not self._suspicious:
            return None
        return frozenset(each.ticket for each in self._waiting if each.ticket is not None)

    def _asking(self, pending: Pending, now: float) -> Asking:
        stays = pending.stays and (pending.deadline is None or now + EPSILON < pending.deadline)
        return Asking(pending.wants, pending.ticket, stays)

    def _standing(self, asked: Sequence[Pending]) -> list[Want]:
        """Return the rules of all that wait in the lines of those *asked*."""
        if not self._named:
            return []
        keys = {want.key for pending in asked for want in pending.wants}
        return [rule for key in keys if key in self._named for rule in self._named[key]]

    def _due_now(self) -> list[Pending]:
        """Return those whose time has come, and a few that stand behind them, by ticket."""
        if not self._due:
            return []
        found = dict(self._due)
        self._due = {}
        for pending in list(found):
            for want in pending.wants:
                found.update(dict.fromkeys(islice(self._queues.get(want.key, ()), TOGETHER)))
        due = sorted(found, key=lambda each: each.ticket or 0)
        for pending in due:
            pending.state = ASKED
        return due

    def _arrivals(self) -> list[Pending]:
        arrived = self._arrived[:BATCH]
        del self._arrived[:BATCH]
        for pending in arrived:
            pending.state = ASKED
        return arrived

    def _finish(self, batch: Batch, answer: asyncio.Future[Done]) -> None:
        self._busy = False
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or error is not None:
            self._failed(batch, error or HarnError("the store was closed"))
            return
        done = answer.result()
        for (_, waiter), row in zip(batch.corrections, done.corrected, strict=True):
            if waiter is not None and not waiter.done():
                waiter.set_result(row)
        for told in (*(paused for *_, paused in batch.pauses), *batch.cleaned):
            resolve(told)
        now = self.clock.monotonic()
        for pending, verdict in zip(batch.asked, done.verdicts, strict=True):
            self._settle(pending, verdict, now)
        for pending in batch.asked:
            if pending.state == WAITING and pending.wake is None and self._is_front(pending):
                self._plan(pending, Waits(0, 0, True), now)  # who came first has left meanwhile
        self._note(done, now)
        self._rejoin = done.forgotten
        self._go_on()

    def _note(self, done: Done, now: float) -> None:
        for key, live, tail in done.use:
            if key in self.use or len(self.use) < MOST_SHOWN:
                self.use[key] = (live, now + (tail - done.now) / 1e6)
        self._sweep(now, done.now)

    def _settle(self, pending: Pending, verdict: Granted | Waits | Refused, now: float) -> None:
        if isinstance(verdict, Waits):
            if pending.ticket is None:
                pending.ticket = verdict.ticket
                self._stand(pending, now)
            pending.state = WAITING
            self._due.pop(pending, None)
            self._plan(pending, verdict, now)
            if pending.gone:
                self._give_back(pending)
            return
        self._step_out(pending)
        pending.state = ENDED
        pending.verdict = verdict
        if pending.gone:
            self._give_back(pending)
        resolve(pending.future)

    def _plan(self, pending: Pending, verdict: Waits, now: float) -> None:
        """Decide when *pending* is asked for again; never, while an own earlier one waits."""
        pending.wake = None
        wake = float("inf")
        if verdict.wait is not None:
            pause = verdict.wait / 1e6
            if verdict.behind and not verdict.wait:
                pause = pending.backoff = min(max(SOONEST, pending.backoff * 2), LATEST)
            else:
                pending.backoff = 0.0
            wake = now + (min(pause, self._poll()) if self._shared else pause)
        if pending.deadline is not None:
            wake = min(wake, pending.deadline)
        if wake < float("inf"):
            pending.wake = wake
            self._timer_count += 1
            heapq.heappush(self._timers, (wake, self._timer_count, pending))

    def _poll(self) -> float:
        return POLL * max(1.0, len(self._queues) / 100)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        self._suspicious = self._rejoin = True
        now = self.clock.monotonic()
        for pending in batch.asked:
            again = isinstance(error, StorageBusy) and pending.ticket is not None
            if again and (pending.deadline is None or now < pending.deadline):
                pending.state = WAITING
                self._plan(pending, Waits(0, int(POLL * 1e6), False), now)
                continue
            if pending.ticket is not None:
                self._next.leaving.append((pending.ticket, pending.wants))
            self._step_out(pending)
            pending.state = ENDED
            if not pending.future.done():
                pending.future.set_exception(error)
        for correction, waiter in batch.corrections:
            if waiter is None:
                self._next.corrections.append((correction, None))
            elif not waiter.done():
                waiter.set_exception(error)
        for *_, waiting in batch.pauses:
            if not waiting.done():
                waiting.set_exception(error)
        for waiting in batch.cleaned:
            resolve(waiting)
        self._next.leaving += batch.leaving
        self._set_timer()

    def _go_on(self) -> None:
        if self._arrived or self._next or self._due or self._rejoin:
            self._kick()
        else:
            self._set_timer()

    def _sweep(self, now: float, store_now: int) -> None:
        if now - self._swept >= SWEEP:
            self._swept = now
            self._sweeping, self._remembered = True, NOTHING
            swept = self.store.driver.submit(lambda: limits.sweep(store_now - FORGET_US))
            swept.add_done_callback(self._end_sweep)

    def _end_sweep(self, swept: asyncio.Future[int]) -> None:
        self._sweeping = False
        if not swept.cancelled() and (error := swept.exception()) is not None:
            logger.debug("old buckets were not swept: %s", error)

    # -- those who wait

    def _stand(self, pending: Pending, now: float) -> None:
        self._waiting[pending] = None
        self._renewed = now  # joining has told the store that we live
        for want in pending.wants:
            if want.charge:
                self._queues.setdefault(want.key, OrderedDict())[pending] = None
                self._named.setdefault(want.key, Counter())[_rule(want)] += 1

    def _step_out(self, pending: Pending) -> None:
        """Leave the local lines; whoever is first there now is asked for next."""
        if self._waiting.pop(pending, False) is False:
            return
        self._due.pop(pending, None)
        for want in pending.wants:
            queue = self._queues.get(want.key)
            if queue is not None and want.charge:
                queue.pop(pending, None)
                self._forget_rule(want)
                if queue:
                    self._wake_lines((want.key,))
                else:
                    del self._queues[want.key]

    def _forget_rule(self, want: Want) -> None:
        named, rule = self._named[want.key], _rule(want)
        named[rule] -= 1
        if not named[rule]:
            del named[rule]
        if not named:
            del self._named[want.key]

    def _wake_lines(self, keys: Iterable[str]) -> None:
        """Ask soon for whoever is first in the lines of *keys*."""
        for key in keys:
            if queue := self._queues.get(key):
                first = next(iter(queue))
                if first.state == WAITING and self._is_front(first):
                    self._due[first] = None

    def _is_front(self, pending: Pending) -> bool:
        return all(
            next(iter(self._queues[want.key])) is pending for want in pending.wants if want.charge
        )

    def _ring(self) -> None:
        """Collect everybody whose time has come."""
        now = self.clock.monotonic() + EPSILON
        while self._timers and self._timers[0][0] <= now:
            when, _, pending = heapq.heappop(self._timers)
            if pending.wake == when and pending.state == WAITING:
                self._due[pending] = None

    def _set_timer(self) -> None:
        while self._timers and self._timers[0][2].wake != self._timers[0][0]:
            heapq.heappop(self._timers)
        when = self._timers[0][0] if self._timers else None
        if self._shared and self._waiting:
            renew = self._renewed + RENEW
            when = renew if when is None else min(when, renew)
        if self._next:  # what could not be given back is tried again
            retry = self.clock.monotonic() + POLL
            when = retry if when is None else min(when, retry)
        if self._timer is not None:
            if self._timer[0] == when:
                return
            self._timer[1].cancel()
            self._timer = None
        if when is not None and not self._closed:
            self._timer = (when, self.clock.call_at(when, self._wake_up))

    def _wake_up(self) -> None:
        self._timer = None
        if not self._busy:
            self._begin()

    # -- those who were cancelled

    async def _withdraw(self, pending: Pending) -> None:
        """Take *pending* out without a trace, before the cancel goes on."""
        if pending.state == ARRIVED:
            self._arrived.remove(pending)
            return
        if self._closed:
            return
        pending.gone = True
        if pending.state == WAITING or isinstance(pending.verdict, Granted):
            self._give_back(pending)
        elif pending.state == ENDED:
            return
        cleaned = asyncio.get_running_loop().create_future()
        self._next.cleaned.append(cleaned)
        self._kick()
        while not cleaned.done():
            try:
                await asyncio.wait((cleaned,))
            except asyncio.CancelledError:
                continue  # the cancel that brought us here is raised all the same

    def _give_back(self, pending: Pending) -> None:
        if isinstance(pending.verdict, Granted):
            for want, row in zip(pending.wants, pending.verdict.rows, strict=True):
                if row is not None:
                    correction = Correction(want, row[0], row[1], pending.verdict.at, 0)
                    self._next.corrections.append((correction, None))
            self._wake_lines(want.key for want in pending.wants)
        else:
            assert pending.ticket is not None
            self._next.leaving.append((pending.ticket, pending.wants))
            self._step_out(pending)
            pending.state = ENDED


def _rule(want: Want) -> Want:
    return Want(want.key, want.limit, want.span, 1)
