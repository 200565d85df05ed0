"""Walk through a history step by step: the queue's tables follow what the log says.

With *check*, the real scheduler is asked before each recorded claim which jobs it would choose at
that moment. The tables then follow the record, so one pick that differs does not make the later
ones differ too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from harn.storage.queue import job_charges, share_key, share_tree
from harn.workers.scheduler_policy import SchedulerPolicy
from harn.workers.whatif.fleet import RecordedConsumer
from harn.workers.whatif.history import (
    ACK,
    CANCEL,
    CLAIM,
    DEAD,
    ENTER,
    FAIL,
    KEYS,
    PARK,
    PAUSE,
    POLICY,
    PURGE,
    RELEASE,
    RENEW,
    RESUME,
    RETRY,
    UNKNOWN,
    UNPARK,
    WAKE,
    Keys,
    QueueHistory,
)
from harn.workers.whatif.ledger import KeyLedger
from harn.workers.whatif.queue_tables import QueueTables
from harn.workers.whatif.scheduler_answers import choose

ABSENT, READY, SCHEDULED, PARKED, CLAIMED, FAILED, SETTLED = range(7)
EVERY = 20_000
"""Steps between two reports of progress."""

Progress = Callable[[int], None]


class Walk:
    """A queue as the log shows it after some of its steps."""

    def __init__(self, history: QueueHistory) -> None:
        self.history = history
        self.place: int = 0
        self.now: int = history.step_at[0] if history.steps else 0
        self.kinds: Keys = ("tenant", 0, "jobs", "")
        self.policy: SchedulerPolicy = SchedulerPolicy()
        self.state: array[int] = array("b", bytes(history.jobs))
        self.claims: array[int] = array("i", bytes(4 * history.jobs))
        """How often each job was claimed."""
        self.last_claim: array[int] = array("l", [UNKNOWN]) * history.jobs
        """The number of the last claim on each job."""
        self.paused: set[str | None] = set()
        self.consumers: dict[int, RecordedConsumer] = {}
        self.picks: int = 0
        self.agree: int = 0
        self.ledger: KeyLedger | None = None
        self._keys: list[str] = []
        self.tables: QueueTables = QueueTables(
            *(history.entered, history.priority, self.key_of, self.policy, self.cost_of),
            lambda: self.now,
        )
        self._settles = {ACK, DEAD, CANCEL, PURGE}

    def key_of(self, job: int) -> str:
        """Return the key of a job, as the queue stores it."""
        origin = self.history.origin[job]
        keys = self._keys
        if origin >= len(keys):
            more = self.history.origins[len(keys) :]
            keys += [share_key(self.kinds[0], *each) for each in more]
        return keys[origin]

    def charge_of(self, job: int) -> float:
        """Return what a pick of *job* counts for."""
        if not self.policy.charges_cost:
            return 1
        real = job_charges.stored_cost(self.history.real_cost[job])
        return self.policy.charge_of(real) / job_charges.MILLION

    def cost_of(self, job: int) -> int | None:
        """Return what *job* was expected to cost, as its row has it."""
        return job_charges.stored_cost(self.history.cost[job])

    def watch(self) -> KeyLedger:
        """Begin to keep a ledger, here."""
        busy = [key for key, share in self.tables.shares.items() if share.ready > 0]
        self.ledger = self.tables.watcher = KeyLedger(self.policy, busy, self.charge_of)
        return self.ledger

    def until(self, end: int, *, check: bool = False, progress: Progress | None = None) -> None:
        """Take every step before the place *end*."""
        history = self.history
        kinds, times, jobs = history.step_kind, history.step_at, history.step_job
        more, charges = history.step_more, history.step_charge
        place, told = self.place, self.place
        while place < end:
            kind, self.now = kinds[place], times[place]
            if kind == CLAIM:
                last = place + 1
                while last < end and kinds[last] == CLAIM and times[last] == self.now:
                    last += 1
                if check:
                    self._check(place, last)
                for each in range(place, last):
                    self._claim(jobs[each], more[each])
                place = last
            else:
                self._step(kind, jobs[place], more[place])
                if charges[place] != UNKNOWN:
                    self._correct(jobs[place], charges[place])
                place += 1
            if progress is not None and place - told >= EVERY:
                told = place
                progress(place)
        self.place = place

    def _check(self, first: int, last: int) -> None:
        """Ask the scheduler for the picks that the steps from *first* to *last* record."""
        recorded = self.history.step_job[first:last]
        chosen = choose(self.tables, self.now, last - first).picks
        self.picks += len(recorded)
        self.agree += sum(pick.id == job + 1 for pick, job in zip(chosen, recorded, strict=False))

    def _claim(self, job: int, claim: int) -> None:
        history, state = self.history, self.state[job]
        if state != READY:  # its record says that it was: an earlier step is missing
            self.move(job, READY)
        if self.ledger is not None and not self.claims[job]:
            self.ledger.wait(self.key_of(job), self.now - history.due[job])
        self._hold(job, claim)
        self.state[job] = CLAIMED
        self.claims[job] += 1
        self.last_claim[job] = claim
        consumer = self._consumer(history.claim_consumer[claim])
        consumer.held += 1
        consumer.slots = max(consumer.slots, consumer.held)

    def _hold(self, job: int, claim: int) -> None:
        history, separator = self.history, self.kinds[3]
        if history.claim_path[claim] != UNKNOWN and separator:
            levels = len(share_tree.lineage(self.key_of(job), separator))
            self.tables.hold_in_tree(job, history.path(claim, levels))
            return
        self.tables.hold(
            job,
            history.claim_round[claim],
            history.claim_credit[claim],
            bool(history.claim_promoted[claim]),
            history.claim_refill[claim],
        )

    def _consumer(self, number: int) -> RecordedConsumer:
        found = self.consumers.get(number)
        if found is None:
            found = self.consumers[number] = RecordedConsumer(self.now, self.now)
        return found

    def _step(self, kind: int, job: int, more: int) -> None:
        state = self.state
        if kind == ENTER:
            self.enter(job)
        elif kind in self._settles:
            self.move(job, SETTLED)
        elif kind == FAIL:
            if more >= 0:
                self.move(job, SCHEDULED)
            elif state[job] == CLAIMED:
                state[job] = FAILED
                self._end_claim(job)
        elif kind == RELEASE:
            self._release(job, more)
        elif kind == WAKE:
            self.move(job, self.ready_state(job))
        elif kind in (RETRY, UNPARK):
            self.move(job, READY)
        elif kind == PARK:
            self.move(job, PARKED)
        elif kind == RENEW:
            if state[job] in (READY, PARKED):
                self._renew(job)
        else:
            self._change_queue(kind, more)

    def _change_queue(self, kind: int, more: int) -> None:
        """Take a step of the whole queue; *more* is its number among those of its kind."""
        history = self.history
        if kind == PAUSE:
            self.paused.add(history.tenants[more])
        elif kind == RESUME:
            self.paused.discard(history.tenants[more])
        elif kind == KEYS:
            self.adopt_keys(history.keys[more])
        elif kind == POLICY:
            self.adopt(history.policies[more])

    def enter(self, job: int) -> None:
        """Put a new job in."""
        if self.history.due[job] > self.history.entered[job]:
            self.state[job] = SCHEDULED
        else:
            self.state[job] = self.ready_state(job)
        if self.state[job] == READY:
            self.tables.enter(job)
        else:
            self.tables.enter_aside(job)

    def ready_state(self, job: int) -> int:
        """Return the state of a job that could be claimed: parked while its tenant is paused."""
        tenant = self.history.origins[self.history.origin[job]][0]
        return PARKED if self.paused and tenant is not None and tenant in self.paused else READY

    def _release(self, job: int, due: int) -> None:
        self.move(job, self.ready_state(job) if due < 0 else SCHEDULED)
        claim, tables = self.last_claim[job], self.tables
        if claim == UNKNOWN or (tables.is_fifo and tables.tree is None):
            return
        if self.history.claim_charged[claim] != UNKNOWN:
            self._correct(job, 0)
        elif not tables.is_fifo:
            tables.refund(job, self.history.claim_round[claim])

    def _correct(self, job: int, charge: int) -> None:
        """Charge the key of *job* what its attempt cost, instead of what it was expected to."""
        claim = self.last_claim[job]
        charged = UNKNOWN if claim == UNKNOWN else self.history.claim_charged[claim]
        if charged != UNKNOWN and (charge == 0 or self.kinds[2] == "cost"):
            self.tables.correct(job, charged - charge)

    def _renew(self, job: int) -> None:
        if self.state[job] == READY:
            self.tables.hold_again(job)
        else:
            self.tables.hold_aside(job)
        self.state[job] = CLAIMED

    def move(self, job: int, to: int) -> None:
        """Move *job* to another state, and its work in the share of its key."""
        was, tables = self.state[job], self.tables
        if was == to:
            return
        in_flight = was in (CLAIMED, FAILED)
        aside = (to in (SCHEDULED, PARKED)) - (was in (SCHEDULED, PARKED))
        if aside:
            tables.set_aside(job, aside)
        if to == READY:
            tables.make_ready(job, was_in_flight=in_flight)
        elif in_flight:
            tables.free(job)
        elif was == READY:
            tables.take_away(job)
        self.state[job] = to
        if was == CLAIMED:
            self._end_claim(job)

    def _end_claim(self, job: int) -> None:
        claim = self.last_claim[job]
        if claim == UNKNOWN:
            return
        consumer = self._consumer(self.history.claim_consumer[claim])
        consumer.held -= 1
        consumer.end = self.now
        consumer.left_work = self.tables.can_serve

    def adopt(self, policy: SchedulerPolicy) -> None:
        """Let the queue follow *policy*; its keys are adopted apart."""
        self.policy = policy
        self.tables.follow(policy)
        if self.ledger is not None:
            self.ledger.follow(policy)

    def adopt_keys(self, kinds: Keys) -> None:
        """Let the queue have other keys, as `change_shares` does."""
        if kinds == self.kinds:
            return
        was, self.kinds = self.kinds, kinds
        dimension, cap, _, separator = kinds
        if dimension != was[0]:
            self._keys.clear()
            if self.ledger is not None:
                self.ledger.close()
            self.tables.adopt_keys(self._unsettled())
        if cap != self.tables.cap:
            self.tables.adopt_cap(cap)
        self.tables.adopt_tree(separator)

    def _unsettled(self) -> Iterator[tuple[int, bool]]:
        for job, state in enumerate(self.state):
            if state == READY:
                yield job, False
            elif state in (CLAIMED, FAILED):
                yield job, True
