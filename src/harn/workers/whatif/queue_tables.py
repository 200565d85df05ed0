"""A queue's shares and ready jobs in memory, as the tables of a store hold them.

`scheduler_answers.py` answers the questions of the real scheduler from them. The rules for a key's
turn and credit are those of the fragments in `storage/sql/jobs.sql`, and a test holds both to the
same picks: the picks recorded by a real queue are made again from these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from harn.storage.queue import Choice, Choose, Share
from harn.workers.job_choice import chooser
from harn.workers.scheduler_policy import SchedulerPolicy
from harn.workers.whatif.key_share import ByPriority, KeyShare, by_priority
from harn.workers.whatif.open_shares import OpenShares
from harn.workers.whatif.tree_rows import TreeRows

NONE = -1
"""Before the first job. The scheduler's ids are one higher than a job's number: 0 is no id."""


class Watcher(Protocol):
    """Receives a call when a key gets or loses its ready jobs, and when a job is claimed."""

    def busy(self, key: str) -> None:
        """A key without ready jobs gets one."""

    def idle(self, key: str) -> None:
        """A key's last ready job is gone."""

    def picked(self, key: str, job: int) -> None:
        """A job is claimed."""


class QueueTables:
    """The state of a queue between two claims.

    *entered* and *priority* are columns of jobs by their numbers, *key_of* returns a job's key.
    """

    def __init__(
        self,
        entered: Any,
        priority: Any,
        key_of: Callable[[int], str],
        policy: SchedulerPolicy,
        cost_of: Callable[[int], int | None] = lambda job: None,
        now: Callable[[], int] = lambda: 0,
    ) -> None:
        self.cap: int = 0
        self.watcher: Watcher | None = None
        self.round: int = 0
        self.last_key: str = ""
        self.promoted: bool = False
        self.shares: dict[str, KeyShare] = {}
        self.open: OpenShares = OpenShares()
        """The shares that have a turn."""
        self.ready: int = 0
        self.tree: TreeRows | None = None
        """The nodes of a queue whose keys are paths."""
        self.entered: Any = entered
        self._priority = priority
        self.key_of: Callable[[int], str] = key_of
        self.cost_of: Callable[[int], int | None] = cost_of
        self._now = now
        self.in_order: ByPriority = by_priority()
        """Under `fifo`, the ready jobs of all keys."""
        self.is_fifo: bool = policy.strategy == "fifo"
        self._charges_cost = policy.charges_cost
        self.follow(policy)

    def follow(self, policy: SchedulerPolicy) -> None:
        """Choose by *policy* from now on; keys, cap and tree are adopted apart."""
        self.policy: SchedulerPolicy = policy
        self.scheduler: Choose = chooser(policy)
        if (policy.strategy == "fifo") != self.is_fifo:
            self._sort_jobs(policy.strategy == "fifo")
        if policy.strategy == "drr" and policy.charges_cost != self._charges_cost:
            self._begin_again(policy.charges_cost)

    def _begin_again(self, charges_cost: bool) -> None:
        """Let every key begin with the next round: `reset_credit`."""
        self._charges_cost = charges_cost
        for share in self.shares.values():
            share.credit, share.refill, share.round = 0, 0, self.round
            if share.turn is not None:
                self.open.turn(share, self.round + 1)

    def _sort_jobs(self, is_fifo: bool) -> None:
        """Keep the ready jobs in one order, or by key."""
        jobs = sorted(self.ready_jobs())
        self.is_fifo = is_fifo
        self.in_order = by_priority()
        for share in self.shares.values():
            share.ready_jobs = by_priority()
        for job in jobs:
            share = self.share_of(job)
            (self.in_order if is_fifo else share.ready_jobs)[self._priority[job]].add(job)
        for share in self.shares.values():
            self._note_oldest(share)

    def ready_jobs(self) -> list[int]:
        """Return every ready job."""
        lanes = [share.ready_jobs for share in self.shares.values()]
        return [
            job
            for three in (self.in_order, *lanes)
            for jobs in three
            for job in jobs.after(NONE, self.ready)
        ]

    @property
    def can_serve(self) -> bool:
        """Whether a choice would find a job."""
        if self.is_fifo:
            return self.ready > 0
        return bool(self.open if self.tree is None else self.tree)

    # -- changes: the rules of the fragments in jobs.sql -----------------------------------------

    def share_of(self, job: int) -> KeyShare:
        """Return the share of a job's key."""
        key = self.key_of(job)
        share = self.shares.get(key)
        if share is None:
            share = self.shares[key] = KeyShare(key)
        return share

    def enter(self, job: int) -> None:
        """Add a new job that is ready: `grow_share`."""
        share = self.share_of(job)
        if share.turn is None and share.ready == 0:
            share.round, share.credit = self.round, share.debt(self._now())
            if not self._is_capped(share):
                self.open.turn(share, share.turn_after(self.round, share.credit))
        share.idle_at = None
        self._add(share, job)
        self._shift(share, 1, 0)

    def make_ready(self, job: int, *, was_in_flight: bool = False) -> None:
        """Make a job ready that was scheduled, parked or in flight: `shift_shares`."""
        share = self.share_of(job)
        share.in_flight -= was_in_flight
        self._reschedule(share, share.ready + 1)
        self._add(share, job)
        self._note_idle(share)
        self._shift(share, 1, -int(was_in_flight))

    def take_away(self, job: int) -> None:
        """Remove a ready job that is not claimed: it was cancelled, purged or parked."""
        share = self.share_of(job)
        self._reschedule(share, share.ready - 1)
        self._remove(share, job)
        self._note_idle(share)
        self._shift(share, -1, 0)

    def set_aside(self, job: int, change: int) -> None:
        """Count a job that begins (1) or ceases (-1) to be scheduled or parked."""
        share = self.share_of(job)
        share.others += change
        self._note_idle(share)

    def enter_aside(self, job: int) -> None:
        """Add a new job that is scheduled or parked: `grow_share` without ready jobs."""
        share = self.share_of(job)
        if share.turn is None and share.ready == 0:
            share.round, share.credit = self.round, share.debt(self._now())
        share.others += 1
        share.idle_at = None

    def free(self, job: int) -> None:
        """End the claim of a job that does not become ready: `free_shares`."""
        share = self.share_of(job)
        share.in_flight -= 1
        self._reschedule(share, share.ready)
        self._note_idle(share)
        self._shift(share, 0, -1)

    def refund(self, job: int, round: int) -> None:
        """Return the credit of a claim of *round* that was released: `refund_shares`."""
        share = self.share_of(job)
        if round == self.round and share.ready > 0 and share.round == round:
            share.credit += 1
            if share.turn is not None:
                self.open.turn(share, round)

    def correct(self, job: int, amount: int) -> None:
        """Add *amount* millionths to the credit of a job's key: `correct_shares`."""
        share = self.share_of(job)
        if amount and self.tree is not None:
            self.tree.correct(share.key, amount, self.round)
            return
        if not amount or not self._charges_cost:
            return
        if not share.refill:
            return
        share.credit, share.round = share.accrued(self.round) + amount, self.round
        if share.turn is not None:
            later = share.turn_after(self.round, share.credit)
            self.open.turn(share, self.round if share.credit > 0 else later)

    def hold_in_tree(self, job: int, path: Sequence[Sequence[int]]) -> None:
        """Claim a job as a record of the log tells whose key is a path: `serve_in_tree`."""
        share = self.share_of(job)
        self._serve(share, job)
        if self.tree is not None:
            self.tree.serve(share.key, path, self.cap)
        self.round = path[0][0]

    def hold(self, job: int, round: int, credit: Any, promoted: bool, refill: int = 0) -> None:
        """Claim a job as a record of the log tells, by the rule of `Share.serve`."""
        share = self.share_of(job)
        served = share.as_share()
        self._serve(share, job)
        if self.is_fifo:
            self._shift(share, -1, 1)
            return
        served.serve(round, int(credit), self.cap, refill)
        self._leave_as(share, served)
        self.round, self.last_key, self.promoted = round, share.key, promoted

    def carry_out(self, choice: Choice) -> None:
        """Claim the jobs that the scheduler chose."""
        for pick in choice.picks:
            share = self.shares[pick.key]
            self._serve(share, pick.id - 1)
        if self.tree is not None:
            self.tree.put(choice.nodes)
        for served in choice.shares:
            self._leave_as(self.shares[served.key], served)
        if not self.is_fifo:
            self.round, self.last_key = choice.round, choice.last_key
            self.promoted = choice.promoted

    def _leave_as(self, share: KeyShare, served: Share) -> None:
        """Give *share* the turn and credit that a claim has left."""
        share.round, share.credit, share.refill = served.round, served.credit, served.refill
        self.open.turn(share, served.turn)

    def hold_again(self, job: int) -> None:
        """Hold a ready job whose claim had expired and is renewed."""
        share = self.share_of(job)
        share.in_flight += 1
        self._reschedule(share, share.ready - 1)
        self._remove(share, job)
        self._shift(share, -1, 1)

    def hold_aside(self, job: int) -> None:
        """Hold a parked job whose claim had expired and is renewed."""
        self.set_aside(job, -1)
        share = self.share_of(job)
        share.in_flight += 1
        self._shift(share, 0, 1)

    def adopt_keys(self, unsettled: Iterable[tuple[int, bool]]) -> None:
        """Count the shares again for another dimension: *unsettled* tells each job, if in flight.

        Jobs that are neither ready nor in flight are not among them.
        """
        self.last_key, self.promoted, self.ready = "", False, 0
        self.shares, self.open = {}, OpenShares()
        self.in_order = by_priority()
        for job, is_in_flight in unsettled:
            if is_in_flight:
                self.share_of(job).in_flight += 1
            else:
                self._add(self.share_of(job), job)
        self.adopt_cap(self.cap)

    def adopt_cap(self, cap: int) -> None:
        """Let at most *cap* claims of a key be in flight: `apply_cap`."""
        self.cap = cap
        for share in self.shares.values():
            if share.ready > 0 or share.in_flight > 0:
                self._reschedule(share, share.ready)

    def adopt_tree(self, separator: str) -> None:
        """Let keys be paths of names between *separator*, none if it is empty: `rebuild_tree`."""
        work = [
            (share.key, share.ready, share.in_flight)
            for _, share in sorted(self.shares.items())
            if share.ready > 0 or share.in_flight > 0
        ]
        is_tree, self.tree = self.tree is not None, None
        if separator:
            self.tree = TreeRows(work, separator, self.round, self.cap, self._now())
        if is_tree != bool(separator):
            self._begin_again(self._charges_cost)

    def _shift(self, share: KeyShare, ready: int, in_flight: int) -> None:
        if self.tree is not None:
            self.tree.shift(share.key, ready, in_flight, self.round, self.cap, self._now())

    def _is_capped(self, share: KeyShare) -> bool:
        return 0 < self.cap <= share.in_flight

    def _reschedule(self, share: KeyShare, ready: int) -> None:
        """Set the turn and credit of a share that is about to have so many ready jobs.

        What `reschedule` in `jobs.sql` says, line by line.
        """
        round, was_open = self.round, share.turn is not None
        closes = ready <= 0 or self._is_capped(share)
        turn, credit = share.turn, share.credit
        if closes:
            turn = None
        elif not was_open:
            has_credit = share.credit > 0 and share.ready > 0
            turn = round if has_credit else share.turn_after(round, share.debt(self._now()))
        if share.ready <= 0:
            credit = share.credit if ready <= 0 else share.debt(self._now())
        elif ready <= 0:
            credit = min(0, share.accrued(round))
        elif closes:
            credit = share.accrued(round)
        if not was_open or (share.refill and closes):
            share.round = round
        share.credit = credit
        self.open.turn(share, turn)

    def _note_idle(self, share: KeyShare) -> None:
        holds = share.ready > 0 or share.in_flight > 0 or share.others > 0
        share.idle_at = None if holds else self._now()

    def _serve(self, share: KeyShare, job: int) -> None:
        if self.watcher is not None:
            self.watcher.picked(share.key, job)
        share.in_flight += 1
        if self.is_fifo or self.tree is not None:
            self._reschedule(share, share.ready - 1)
        self._remove(share, job)

    def _add(self, share: KeyShare, job: int) -> None:
        share.ready += 1
        self.ready += 1
        if share.ready == 1 and self.watcher is not None:
            self.watcher.busy(share.key)
        jobs = self.in_order if self.is_fifo else share.ready_jobs
        jobs[self._priority[job]].add(job)
        if not self.is_fifo and (share.oldest is None or self.entered[job] < share.oldest):
            self._note_oldest(share)

    def _remove(self, share: KeyShare, job: int) -> None:
        share.ready -= 1
        self.ready -= 1
        if share.ready == 0 and self.watcher is not None:
            self.watcher.idle(share.key)
        jobs = self.in_order if self.is_fifo else share.ready_jobs
        jobs[self._priority[job]].remove(job)
        if not self.is_fifo:
            self._note_oldest(share)

    def _note_oldest(self, share: KeyShare) -> None:
        entered = self.entered
        firsts = [jobs.first for jobs in share.ready_jobs]
        oldest = min((entered[job] for job in firsts if job is not None), default=None)
        if oldest != share.oldest:
            share.oldest = oldest
            if share.turn is not None:
                self.open.aged(share)
