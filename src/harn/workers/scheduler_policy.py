"""How a queue's consumers share it: the settings of the fair-share scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

import msgspec

from harn.errors import InvalidOption, did_you_mean
from harn.option_checks import LARGEST, whole_number
from harn.settings import SchedulerSettings
from harn.storage.queue import Dimension, job_charges, share_tree, shown_key

Strategy = Literal["fifo", "drr"]
Charge = Literal["jobs", "cost"]
Hierarchy = Literal["/"]
STARVATION_AGE_MS = 300_000


class SchedulerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets the next turn at a worker queue.

    `fifo` serves jobs by rank and age alone. `drr` (deficit round robin) rotates over the
    *fairness_key*: each key may take `weight * quantum` jobs a round, at most
    *max_concurrent_per_key* of them in flight (0: no cap), and a job that has waited for
    *starvation_age_ms* (0: off) is promoted. With *charge* `cost` a job counts as what it costs: a
    key may take `weight * quantum` of cost a round. With *hierarchy* a tenant id is a path of up to
    four names, as in `acme/bob`: shares are divided level by level, and *weights* name paths.
    There *starvation_age_ms* is 0, because no job is promoted; a value of your own is refused.

    >>> policy = SchedulerPolicy(strategy="drr", weights={"acme": 3})
    >>> policy.weight("acme"), policy.weight("other")
    (3, 1)
    """

    strategy: Strategy = "fifo"
    fairness_key: Dimension = "tenant"
    quantum: int = 1
    starvation_age_ms: int = STARVATION_AGE_MS
    max_concurrent_per_key: int = 0
    default_weight: int = 1
    weights: dict[str, int] = {}
    charge: Charge = "jobs"
    hierarchy: Hierarchy | None = None

    def __post_init__(self) -> None:
        _one_of("strategy", self.strategy, get_args(Strategy))
        _one_of("fairness_key", self.fairness_key, get_args(Dimension))
        _whole("quantum", self.quantum, 1)
        _whole("starvation_age_ms", self.starvation_age_ms, 0)
        _whole("max_concurrent_per_key", self.max_concurrent_per_key, 0)
        _whole("default_weight", self.default_weight, 1)
        if not isinstance(self.weights, Mapping):
            raise InvalidOption("weights", self.weights, "a mapping from keys to weights")
        for key, weight in self.weights.items():
            if not isinstance(key, str) or not key:
                raise InvalidOption("weights", self.weights, "a mapping from keys to weights")
            _whole(f"weights[{key!r}]", weight, 1)
        _one_of("charge", self.charge, get_args(Charge))
        if self.hierarchy is not None:
            self._check_hierarchy()

    def _check_hierarchy(self) -> None:
        if self.hierarchy not in get_args(Hierarchy):
            raise InvalidOption("hierarchy", self.hierarchy, '"/", or None')
        if self.fairness_key != "tenant":
            accepted = 'None, unless fairness_key is "tenant": only tenants are paths'
            raise InvalidOption("hierarchy", self.hierarchy, accepted)
        for key in self.weights:
            self.check_path("weights", key)
        if self.strategy == "drr":
            self._promote_none()

    def _promote_none(self) -> None:
        """Turn the default promotion off; one that was asked for is refused."""
        if self.starvation_age_ms not in (0, STARVATION_AGE_MS):
            accepted = "0, or left out, with a hierarchy: jobs of a tree are not promoted"
            raise InvalidOption("starvation_age_ms", self.starvation_age_ms, accepted)
        msgspec.structs.force_setattr(self, "starvation_age_ms", 0)

    def check_path(self, option: str, key: str | None) -> None:
        """Refuse a key that is a path of too many names.

        >>> SchedulerPolicy(hierarchy="/").check_path("key", "1/2/3/4/5")
        Traceback (most recent call last):
        ...
        harn.errors.InvalidOption: key='1/2/3/4/5' is not accepted: at most 4 names between '/'
        """
        if self.hierarchy is None or key is None:
            return
        if key.count(self.hierarchy) >= share_tree.MOST_LEVELS:
            accepted = f"at most {share_tree.MOST_LEVELS} names between {self.hierarchy!r}"
            raise InvalidOption(option, key, accepted)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the `HARN_SCHEDULER_*` variables of *environ*, the process's own unless given.

        >>> SchedulerPolicy.from_env({"HARN_SCHEDULER_STRATEGY": "drr"}).strategy
        'drr'
        """
        settings = SchedulerSettings.load(environ)
        return cls(
            strategy=settings.strategy,
            fairness_key=settings.fairness_key,
            quantum=settings.quantum,
            starvation_age_ms=settings.starvation_age_ms,
            max_concurrent_per_key=settings.max_concurrent_per_key,
            default_weight=settings.default_weight,
            weights=dict(settings.weights),
            charge=settings.charge,
            hierarchy=settings.hierarchy,
        )

    def weight(self, key: str) -> int:
        """Return the weight of a key, as people write it."""
        return self.weights.get(key, self.default_weight)

    @property
    def charges_cost(self) -> bool:
        """Whether a pick costs what its job does, and credit is counted in millionths."""
        return self.charge == "cost" and self.strategy == "drr"

    def full_credit(self, stored_key: str) -> int:
        """Return what a refill grants a key, as it is stored."""
        if not self.weights and self.hierarchy is None:
            full = self.default_weight * self.quantum  # every claim asks for each of its keys
        else:
            full = stored_weight(self, stored_key) * self.quantum
        if not self.charges_cost and self.hierarchy is None:
            return full
        return min(full * job_charges.MILLION, job_charges.LARGEST_AMOUNT)

    def charge_of(self, cost: int | None) -> int:
        """Return what a job of *cost* millionths (None: 1) is charged, where jobs are.

        That is at least a hundredth of a quantum: a key whose jobs cost nothing would keep the
        round open, and the others waiting, as long as it has jobs.

        >>> SchedulerPolicy(strategy="drr", charge="cost", quantum=50).charge_of(0)
        500000
        """
        least = min(self.quantum * job_charges.MILLION // 100, job_charges.LARGEST_AMOUNT)
        return max(least, job_charges.MILLION if cost is None else cost)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy the way `queue ls --json` shows it."""
        kind: dict[str, Any] = {"kind": "fifo"}
        if self.strategy == "drr":
            kind = {
                "kind": "deficit-round-robin",
                "quantum": self.quantum,
                "starvation_age_ms": self.starvation_age_ms or None,
            }
        return {
            "strategy": kind,
            "fairness_key": self.fairness_key,
            "weights": dict(self.weights),
            "default_weight": self.default_weight,
            "max_concurrent_per_key": self.max_concurrent_per_key,
            **({} if self.charge == "jobs" else {"charge": self.charge}),
            **({} if self.hierarchy is None else {"hierarchy": self.hierarchy}),
        }

    def canonical(self) -> str:
        """Return text that is equal for equal policies, to compare claimers by."""
        return msgspec.json.encode(self.as_dict(), order="sorted").decode()


def stored_weight(policy: SchedulerPolicy, key: str) -> int:
    """Return the weight of a key or a node, as it is stored; a node's own jobs weigh 1."""
    is_own = policy.hierarchy is not None and not key.endswith(share_tree.NODE)
    return 1 if is_own else policy.weight(shown_key(key))


def read_policy(shown: Mapping[str, Any]) -> SchedulerPolicy:
    """Read a policy from what `SchedulerPolicy.as_dict` returned.

    >>> policy = SchedulerPolicy(strategy="drr", weights={"acme": 3})
    >>> read_policy(policy.as_dict()) == policy
    True
    """
    found = dict(shown)
    kind = found.pop("strategy")
    if kind["kind"] != "fifo":
        age = kind["starvation_age_ms"] or 0
        found |= {"strategy": "drr", "quantum": kind["quantum"], "starvation_age_ms": age}
    return SchedulerPolicy(**found)


def _one_of(option: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise InvalidOption(option, value, f"one of {', '.join(known)}{near}")


def _whole(option: str, value: object, least: int) -> None:
    accepts = f"a whole number of at least {least}"
    whole_number(option, value, least=least, most=LARGEST - 1, wanted=accepts)
