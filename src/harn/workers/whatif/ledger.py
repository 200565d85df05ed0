"""What each key got: how long its jobs waited, and its share of the picks.

A key is entitled to its weight's part of every pick that is made while it has a ready job. The sum
of those parts is kept as a clock: it advances by 1 / (the weights of all busy keys) at each pick,
and a key's entitlement is its weight times the time during which it was busy. So a pick costs the
same with two keys and with ten thousand.

In a tree each branch has such a clock. It advances by what the branch is entitled to, which is its
weight times the time of the clock above, divided by the weights of its busy children. A clock is
brought up to date when one of its children becomes busy or idle; in between nothing there changes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from harn.storage.queue import share_tree, shown_key
from harn.workers.scheduler_policy import SchedulerPolicy, stored_weight

PERCENTILES = (50, 95, 99)


class Branch:
    """The busy children of a node, and their clock."""

    __slots__ = ("busy", "clock", "seen", "weight", "weights")

    def __init__(self, weight: float) -> None:
        self.weight: float = weight
        self.clock: float = 0.0
        self.weights: float = 0.0
        """The sum of the weights of its busy children."""
        self.busy: int = 0
        """How many they are."""
        self.seen: float = 0.0
        """The time of the clock above, when this one was last updated."""


class Account:
    """One key's waits, and its picks: made and entitled to."""

    __slots__ = ("branches", "busy_since", "entitled", "served", "waits", "weight")

    def __init__(self, weight: float, branches: list[Branch]) -> None:
        self.weight: float = weight
        self.branches: list[Branch] = branches
        """From the root down to the one that it is a child of."""
        self.waits: array[int] = array("q")
        self.served: float = 0.0
        self.entitled: float = 0.0
        self.busy_since: float | None = None


class KeyLedger:
    """The accounts of all keys; the tables tell it what happens (`queue_tables.Watcher`)."""

    def __init__(
        self, policy: SchedulerPolicy, busy: Iterable[str], charge_of: Callable[[int], float]
    ) -> None:
        self.accounts: dict[str, Account] = {}
        self._policy = policy
        self._charge_of = charge_of
        self._root = Branch(1)
        self._branches = {share_tree.ROOT: self._root}
        for key in busy:
            self.busy(key)

    def follow(self, policy: SchedulerPolicy) -> None:
        """Weigh the keys by *policy* from now on."""
        busy = [key for key, each in self.accounts.items() if each.busy_since is not None]
        for key in busy:
            self.idle(key)
        self._policy = policy
        self._root = Branch(1)
        self._branches = {share_tree.ROOT: self._root}
        for key, account in self.accounts.items():
            account.weight, account.branches = self._place_of(key)
        for key in busy:
            self.busy(key)

    def account(self, key: str) -> Account:
        """Return the account of a key, as it is stored."""
        found = self.accounts.get(key)
        if found is None:
            found = self.accounts[key] = Account(*self._place_of(key))
        return found

    def _place_of(self, key: str) -> tuple[float, list[Branch]]:
        """Return the weight of a key, and the branches from the root down to it."""
        policy, branches = self._policy, [self._root]
        if policy.strategy != "drr" or policy.hierarchy is None:
            return policy.weight(shown_key(key)), branches
        for node, _ in share_tree.lineage(key, policy.hierarchy)[:-1]:
            branch = self._branches.get(node)
            if branch is None:
                branch = self._branches[node] = Branch(stored_weight(policy, node))
            branches.append(branch)
        return stored_weight(policy, key), branches

    def busy(self, key: str) -> None:
        """Begin to count what a key is entitled to."""
        account = self.account(key)
        account.busy_since = _up_to_date(account.branches)
        weight = account.weight
        for branch in reversed(account.branches):
            branch.weights += weight
            branch.busy += 1
            if branch.busy > 1:
                return
            weight = branch.weight

    def idle(self, key: str) -> None:
        """Count what a key was entitled to since it was busy."""
        account = self.accounts[key]
        assert account.busy_since is not None
        clock = _up_to_date(account.branches)
        account.entitled += account.weight * (clock - account.busy_since)
        account.busy_since = None
        weight = account.weight
        for branch in reversed(account.branches):
            branch.weights -= weight
            branch.busy -= 1
            if branch.busy:
                return
            weight = branch.weight

    def picked(self, key: str, job: int) -> None:
        """Count a pick, while its key is still busy."""
        charge = self._charge_of(job)
        self._root.clock += charge / self._root.weights
        self.accounts[key].served += charge

    def close(self) -> None:
        """Count what keys that are still busy were entitled to."""
        for key, account in self.accounts.items():
            if account.busy_since is not None:
                self.idle(key)

    def wait(self, key: str, ms: int) -> None:
        """Note how long a job waited for its first claim."""
        self.account(key).waits.append(max(0, ms))


def _up_to_date(branches: list[Branch]) -> float:
    """Advance the clocks of branches, from the root down; return that of the last one."""
    clock = branches[0].clock
    for branch in branches[1:]:
        if branch.busy:
            branch.clock += branch.weight * (clock - branch.seen) / branch.weights
        branch.seen, clock = clock, branch.clock
    return clock


def percentile(ordered: array[int], percent: int) -> int | None:
    """Return the least value that *percent* of the values do not exceed; None without any.

    >>> percentile(array("q", [10, 20, 30, 40]), 50), percentile(array("q", [10, 20]), 95)
    (20, 20)
    """
    if not ordered:
        return None
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
