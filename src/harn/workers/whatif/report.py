"""What each key got in the log, and what it would get: the numbers of `queue what-if`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from harn.storage.queue import shown_key
from harn.workers.scheduler_policy import SchedulerPolicy
from harn.workers.whatif.fleet import RecordedConsumer, fleet_of, recorded_fleet
from harn.workers.whatif.history import CLAIM, QueueHistory
from harn.workers.whatif.ledger import PERCENTILES, KeyLedger, percentile
from harn.workers.whatif.simulation import PolicySimulation
from harn.workers.whatif.walk import PARKED, READY, Progress, Walk


class KeyReport(msgspec.Struct):
    """One key: how long its jobs waited for their first claim, and its share of the picks."""

    wait_ms: dict[str, int | None]
    served: float | None
    """Its part of all picks, in percent."""
    entitled: float | None
    """The part that its weight asks for, counted while it had ready jobs."""
    jobs: int
    waiting: int
    """Jobs that were never claimed; their wait so far is counted."""


class Side(msgspec.Struct):
    """One side of the comparison: what was recorded, or what is proposed."""

    policy: SchedulerPolicy
    consumers: int
    slots: int
    keys: dict[str, KeyReport]
    picks: int = 0
    agree: int = 0
    """Picks of the job that the log has at the same place in the order of all picks."""

    def as_dict(self) -> dict[str, Any]:
        """Return it the way `--json` shows it."""
        return {
            "picks": self.picks,
            "agree": self.agree,
            "policy": self.policy.as_dict(),
            "consumers": self.consumers,
            "slots": self.slots,
            "keys": {key: msgspec.to_builtins(each) for key, each in self.keys.items()},
        }


class Recorded(msgspec.Struct):
    """What the log shows: its numbers, and the consumers that served the queue."""

    side: Side
    consumers: list[RecordedConsumer]


def examine(history: QueueHistory, since: int, progress: Progress | None = None) -> Recorded:
    """Add up what happened from the time *since* on."""
    walk = Walk(history)
    walk.until(history.first_step(since))
    ledger = walk.watch()
    walk.until(history.steps, progress=progress)
    _count_waiting(walk, ledger)
    alive = [each for each in walk.consumers.values() if each.held or each.end >= since]
    slots = sum(each.slots for each in alive)
    picks = len(_recorded_picks(history, since))
    side = Side(walk.policy, len(alive), slots, _keys(ledger, _waiting(walk)), picks)
    return Recorded(side, alive)


def check_picks(
    history: QueueHistory, since: int, progress: Progress | None = None
) -> tuple[int, int]:
    """Return how many picks the log has, and how many the scheduler would make again."""
    walk = Walk(history)
    walk.until(history.first_step(since))
    walk.until(history.steps, check=True, progress=progress)
    return walk.picks, walk.agree


def simulate_policy(
    history: QueueHistory,
    since: int,
    policy: SchedulerPolicy,
    recorded: Sequence[RecordedConsumer],
    consumers: int | None = None,
    progress: Progress | None = None,
) -> Side:
    """Serve the jobs of *history* again by *policy*, with the recorded consumers or others."""
    walk = Walk(history)
    walk.until(history.first_step(since))
    fleet = recorded_fleet(recorded) if consumers is None else fleet_of(consumers, recorded)
    simulation = PolicySimulation(walk, policy, fleet)
    ledger = simulation.run(progress)
    walk.now = max(walk.now, history.step_at[-1])
    _count_waiting(walk, ledger)
    keys, slots = _keys(ledger, _waiting(walk)), sum(each.slots for each in fleet)
    again = zip(simulation.picks, _recorded_picks(history, since), strict=False)
    agree = sum(one == other for one, other in again)
    return Side(policy, len(fleet), slots, keys, len(simulation.picks), agree)


def _recorded_picks(history: QueueHistory, since: int) -> list[int]:
    """Return the claimed jobs in their order."""
    steps = range(history.first_step(since), history.steps)
    return [history.step_job[place] for place in steps if history.step_kind[place] == CLAIM]


def _waiting(walk: Walk) -> dict[str, list[int]]:
    """Return the jobs that were ready and never claimed, by key."""
    found: dict[str, list[int]] = {}
    for job, state in enumerate(walk.state):
        if state in (READY, PARKED) and not walk.claims[job]:
            found.setdefault(walk.key_of(job), []).append(job)
    return found


def _count_waiting(walk: Walk, ledger: KeyLedger) -> None:
    ledger.close()
    for key, jobs in _waiting(walk).items():
        for job in jobs:
            ledger.wait(key, walk.now - walk.history.due[job])


def _keys(ledger: KeyLedger, waiting: dict[str, list[int]]) -> dict[str, KeyReport]:
    served = sum(each.served for each in ledger.accounts.values())
    reports: dict[str, KeyReport] = {}
    for key, account in sorted(ledger.accounts.items()):
        ordered = array("q", sorted(account.waits))
        wait_ms = {f"p{each}": percentile(ordered, each) for each in PERCENTILES}
        reports[shown_key(key)] = KeyReport(
            {**wait_ms, "max": ordered[-1] if ordered else None},
            _percent(account.served, served),
            _percent(account.entitled, served),
            len(ordered),
            len(waiting.get(key, ())),
        )
    return reports


def _percent(part: float, whole: float) -> float | None:
    return round(100 * part / whole, 1) if whole > 0 else None
