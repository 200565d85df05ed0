"""What each key got: how long its jobs waited, and its share of the picks.

A key is entitled to its weight's part of every pick that is made while it has a ready job. The sum
of those parts is kept as a clock: it advances by 1 / (the weights of all busy keys) at each pick,
and a key's entitlement is its weight times the time during which it was busy. So a pick costs the
same with two keys and with ten thousand.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from harn.storage.queue import shown_key
from harn.workers.scheduler_policy import SchedulerPolicy

PERCENTILES = (50, 95, 99)


class Account:
    """One key's waits, and its picks: made and entitled to."""

    __slots__ = ("busy_since", "entitled", "served", "waits", "weight")

    def __init__(self, weight: float) -> None:
        self.weight: float = weight
        self.waits: array[int] = array("q")
        self.served: float = 0.0
        self.entitled: float = 0.0
        self.busy_since: float | None = None


class Ledger:
    """The accounts of all keys; the tables tell it what happens (`tables.Watcher`)."""

    def __init__(
        self, policy: SchedulerPolicy, busy: Iterable[str], charge_of: Callable[[int], float]
    ) -> None:
        self.accounts: dict[str, Account] = {}
        self._policy = policy
        self._charge_of = charge_of
        self._clock = 0.0
        self._weights = 0.0
        for key in busy:
            self.busy(key)

    def follow(self, policy: SchedulerPolicy) -> None:
        """Weigh the keys by *policy* from now on."""
        busy = [key for key, each in self.accounts.items() if each.busy_since is not None]
        for key in busy:
            self.idle(key)
        self._policy = policy
        for key, account in self.accounts.items():
            account.weight = policy.weight(shown_key(key))
        for key in busy:
            self.busy(key)

    def account(self, key: str) -> Account:
        """Return the account of a key, as it is stored."""
        found = self.accounts.get(key)
        if found is None:
            found = self.accounts[key] = Account(self._policy.weight(shown_key(key)))
        return found

    def busy(self, key: str) -> None:
        """Begin to count what a key is entitled to."""
        account = self.account(key)
        account.busy_since = self._clock
        self._weights += account.weight

    def idle(self, key: str) -> None:
        """Count what a key was entitled to since it was busy."""
        account = self.accounts[key]
        assert account.busy_since is not None
        account.entitled += account.weight * (self._clock - account.busy_since)
        account.busy_since = None
        self._weights -= account.weight

    def picked(self, key: str, job: int) -> None:
        """Count a pick, while its key is still busy."""
        charge = self._charge_of(job)
        self._clock += charge / self._weights
        self.accounts[key].served += charge

    def close(self) -> None:
        """Count what keys that are still busy were entitled to."""
        for key, account in self.accounts.items():
            if account.busy_since is not None:
                self.idle(key)

    def wait(self, key: str, ms: int) -> None:
        """Note how long a job waited for its first claim."""
        self.account(key).waits.append(max(0, ms))


def percentile(ordered: array[int], percent: int) -> int | None:
    """Return the least value that *percent* of the values do not exceed; None without any.

    >>> percentile(array("q", [10, 20, 30, 40]), 50), percentile(array("q", [10, 20]), 95)
    (20, 20)
    """
    if not ordered:
        return None
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
