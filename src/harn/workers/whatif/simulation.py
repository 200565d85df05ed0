"""Serve the jobs of a history again, by another policy or with other consumers, in virtual time.

Jobs arrive when they arrived, and each attempt takes as long as it took. What is new is who is
served when: the consumers ask the real scheduler whenever one of their slots is free. The events
are kept in a heap; no time passes between two of them.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from itertools import count
from typing import Any

from harn.storage.queue import job_charges
from harn.workers.scheduler_policy import SchedulerPolicy
from harn.workers.whatif.fleet import FOREVER, SimulatedConsumer
from harn.workers.whatif.history import (
    CANCEL,
    CLAIM,
    ENTER,
    PAUSE,
    PURGE,
    RESUME,
    UNKNOWN,
    Attempt,
    Keys,
    QueueHistory,
)
from harn.workers.whatif.ledger import KeyLedger
from harn.workers.whatif.scheduler_answers import choose
from harn.workers.whatif.walk import (
    CLAIMED,
    FAILED,
    PARKED,
    READY,
    SCHEDULED,
    SETTLED,
    Progress,
    Walk,
)

END, DUE, BEGIN, LEAVE, OPERATE = range(5)
EVERY = 5000
"""Picks between two reports of progress."""
MOST_AT_ONCE = 1000


def _keys_of(policy: SchedulerPolicy) -> Keys:
    if policy.strategy == "fifo":
        return policy.fairness_key, 0, "jobs", ""
    cap = policy.max_concurrent_per_key
    return policy.fairness_key, cap, policy.charge, policy.hierarchy or ""


class PolicySimulation:
    """Carries a walk on from where it stands, without the rest of its claims."""

    def __init__(
        self, walk: Walk, policy: SchedulerPolicy, fleet: Sequence[SimulatedConsumer]
    ) -> None:
        self.walk = walk
        self.picks: array[int] = array("l")
        """The claimed jobs, in their order."""
        self._history: QueueHistory = walk.history
        self._fleet = fleet
        self._present: list[SimulatedConsumer] = []
        self._free = 0
        """Free slots of all that are present."""
        self._is_leaving = False
        """Whether a consumer leaves when it finds nothing more."""
        self._heap: list[tuple[int, int, int, Any, int]] = []
        self._order = count()
        self._usual = self._history.usual_durations()
        self._arrivals: list[int] = []
        walk.adopt(policy)
        walk.adopt_keys(_keys_of(policy))
        self._ledger: KeyLedger = walk.watch()
        self._plan()

    def run(self, progress: Progress | None = None) -> KeyLedger:
        """Serve all jobs; return what each key got."""
        arrivals, entered, heap, told = self._arrivals, self._history.entered, self._heap, 0
        place, last = 0, len(arrivals)
        while place < last or heap:
            now = heap[0][0] if heap else FOREVER
            if place < last and entered[arrivals[place]] <= now:
                now = entered[arrivals[place]]
            self.walk.now = now
            while place < last and entered[arrivals[place]] <= now:
                self._enter(arrivals[place], now)
                place += 1
            while heap and heap[0][0] <= now:
                self._happen(*heapq.heappop(heap)[2:])
            self._dispatch(now)
            if progress is not None and len(self.picks) - told >= EVERY:
                told = len(self.picks)
                progress(told)
        return self._ledger

    # -- what is known beforehand ----------------------------------------------------------------

    def _plan(self) -> None:
        """Note every event that does not depend on the scheduler."""
        history, walk = self._history, self.walk
        for consumer in self._fleet:
            self._at(max(consumer.start, walk.now), BEGIN, consumer)
        for job, state in enumerate(walk.state):
            if state in (CLAIMED, FAILED):
                began = self._began(job)
                self._at(max(walk.now, began + self._attempt(job).duration), END, (job, None))
            elif state == SCHEDULED:
                self._at(max(walk.now, self._due_again(job)), DUE, job)
        operations = (PAUSE, RESUME, CANCEL, PURGE)
        for place in range(walk.place, history.steps):
            kind = history.step_kind[place]
            if kind == ENTER:
                self._arrivals.append(history.step_job[place])
            elif kind in operations:
                self._at(history.step_at[place], OPERATE, place)

    def _began(self, job: int) -> int:
        """Return when the claim on *job* was made, which the log made before we begin."""
        history, place = self._history, self.walk.place - 1
        while place >= 0:
            if history.step_job[place] == job and history.step_kind[place] == CLAIM:
                return history.step_at[place]
            place -= 1
        return self.walk.now

    def _due_again(self, job: int) -> int:
        claims = self.walk.claims[job]
        if not claims:
            return self._history.due[job]
        attempt = self._history.attempt(job, claims - 1)
        if attempt is None or attempt.again_after == UNKNOWN:
            return self.walk.now
        return self._began(job) + attempt.duration + attempt.again_after

    def _attempt(self, job: int) -> Attempt:
        """Return the attempt that the latest claim on *job* began."""
        found = self._history.attempt(job, self.walk.claims[job] - 1)
        if found is not None:
            return found
        usual = self._usual.get(self._history.origin[job], self._usual[UNKNOWN])
        return Attempt(usual)

    # -- what happens ----------------------------------------------------------------------------

    def _at(self, when: int, kind: int, what: Any, round: int = 0) -> None:
        heapq.heappush(self._heap, (when, next(self._order), kind, what, round))

    def _enter(self, job: int, now: int) -> None:
        self.walk.enter(job)
        if self.walk.state[job] == SCHEDULED:
            self._at(self._history.due[job], DUE, job)

    def _happen(self, kind: int, what: Any, round: int) -> None:
        if kind == END:
            job, consumer = what
            self._end(job, consumer, round)
        elif kind == DUE:
            if self.walk.state[what] == SCHEDULED:
                self.walk.move(what, self.walk.ready_state(what))
        elif kind == BEGIN:
            what.is_there = True
            self._free += what.free
            self._present.append(what)
            if what.end < FOREVER:
                self._at(max(what.end, what.start), LEAVE, what)
        elif kind == LEAVE:
            what.is_leaving = self._is_leaving = True
            if what.leaves_at_once:
                self._leave(what)
        else:
            self._operate(what)

    def _end(self, job: int, consumer: SimulatedConsumer | None, round: int) -> None:
        """End the attempt at *job* as it ended in the log."""
        walk, attempt = self.walk, self._attempt(job)
        if consumer is not None:
            consumer.held -= 1
            self._free += consumer.is_there
        if attempt.again_after == UNKNOWN:
            walk.move(job, SETTLED)
        elif attempt.again_after <= 0:
            walk.move(job, walk.ready_state(job))
        else:
            walk.move(job, SCHEDULED)
            self._at(walk.now + attempt.again_after, DUE, job)
        if walk.policy.charges_cost:
            self._correct(job, attempt)
        elif attempt.is_released and walk.tables.tree is not None:
            walk.tables.correct(job, job_charges.MILLION)
        elif attempt.is_released and not walk.tables.is_fifo:
            walk.tables.refund(job, round)

    def _correct(self, job: int, attempt: Attempt) -> None:
        """Charge the key of *job* what it really cost, and nothing for a released attempt."""
        walk, policy = self.walk, self.walk.policy
        charged, real = policy.charge_of(walk.cost_of(job)), self._history.real_cost[job]
        if attempt.is_released:
            walk.tables.correct(job, charged)
        elif attempt.again_after == UNKNOWN:
            walk.tables.correct(job, charged - policy.charge_of(job_charges.stored_cost(real)))

    def _operate(self, place: int) -> None:
        """Repeat what an operator did: pause, resume, cancel or purge."""
        history, walk = self._history, self.walk
        kind, job = history.step_kind[place], history.step_job[place]
        if kind in (CANCEL, PURGE):
            if walk.state[job] in (READY, SCHEDULED, PARKED):
                walk.move(job, SETTLED)
            return
        tenant = history.tenants[history.step_more[place]]
        if kind == PAUSE:
            walk.paused.add(tenant)
            moved = [job for job in walk.tables.ready_jobs() if walk.ready_state(job) == PARKED]
        else:
            walk.paused.discard(tenant)
            parked = [job for job, state in enumerate(walk.state) if state == PARKED]
            moved = [job for job in parked if walk.ready_state(job) == READY]
        for each in moved:
            walk.move(each, walk.ready_state(each))

    def _dispatch(self, now: int) -> None:
        """Let every free slot take a job, by one choice of the scheduler."""
        tables = self.walk.tables
        while self._free and tables.can_serve and None not in self.walk.paused:
            free = [each for each in self._present if each.free > 0]
            wanted = min(self._free, MOST_AT_ONCE)
            choice = choose(tables, now, wanted)
            tables.carry_out(choice)
            for pick in choice.picks:
                if not free[0].free:
                    del free[0]
                self._begin(pick.id - 1, pick.round, free[0], now)
            if len(choice.picks) < wanted:
                break
        if self._is_leaving and not tables.can_serve:
            for each in [one for one in self._present if one.is_leaving and not one.held]:
                self._leave(each)

    def _leave(self, consumer: SimulatedConsumer) -> None:
        self._free -= consumer.free
        consumer.is_there = False
        self._present.remove(consumer)

    def _begin(self, job: int, round: int, consumer: SimulatedConsumer, now: int) -> None:
        walk = self.walk
        if not walk.claims[job]:
            self._ledger.wait(walk.key_of(job), now - self._history.due[job])
        walk.state[job] = CLAIMED
        walk.claims[job] += 1
        self.picks.append(job)
        consumer.held += 1
        self._free -= 1
        self._at(now + self._attempt(job).duration, END, (job, consumer), round)
