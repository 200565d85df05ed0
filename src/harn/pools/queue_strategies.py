"""Which queued task is next: fifo, priority, lifo, fair_round_robin.

A `Strategy` is the caller's choice, as data. `Strategy.queue()` makes the queue that follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

from harn.errors import InvalidOption, did_you_mean
from harn.option_checks import one_of
from harn.pools.task_queues import FairRoundRobin, Fifo, Lifo, Priority, TaskQueue

StrategyKind = Literal["fifo", "priority", "lifo", "fair_round_robin"]
KINDS: tuple[str, ...] = get_args(StrategyKind)

_QUEUES: dict[str, Callable[[], TaskQueue[Any]]] = {
    "fifo": Fifo,
    "lifo": Lifo,
    "priority": Priority,
    "fair_round_robin": FairRoundRobin,
}


@dataclass(frozen=True, slots=True)
class Strategy:
    """A queue strategy as the caller chose it; *key* names the fair queue's partition field.

    >>> Strategy("fair_round_robin", "tenant_id").key
    'tenant_id'
    """

    kind: StrategyKind
    key: str | None = None

    def queue(self) -> TaskQueue[Any]:
        """Make an empty queue of this kind."""
        return _QUEUES[self.kind]()

    def as_dict(self) -> dict[str, Any]:
        """Return the strategy, JSON-ready."""
        shown = {"_type": "queue_strategy", "kind": self.kind}
        return shown if self.key is None else {**shown, "key": self.key}


def fifo() -> Strategy:
    """Take the oldest queued task first, whatever its priority.

    >>> fifo().kind
    'fifo'
    """
    return Strategy("fifo")


def priority() -> Strategy:
    """Take the highest priority first; equal ones stay in order. The default.

    >>> priority().kind
    'priority'
    """
    return Strategy("priority")


def lifo() -> Strategy:
    """Take the newest queued task first.

    >>> lifo().kind
    'lifo'
    """
    return Strategy("lifo")


def fair_round_robin(key: str = "key") -> Strategy:
    """Take one task of each partition in turn; the submit option named *key* is the partition.

    Partitions rotate in the order of their first arrival; one that runs empty leaves, and comes
    back at the end. Submits without the field fall back to `key`, and those without either share
    one partition that no key can name.

    >>> fair_round_robin("tenant_id").key
    'tenant_id'
    """
    if not isinstance(key, str) or not key or key in ("priority", "idempotency_key"):
        raise InvalidOption("key", key, "the name of a label, or 'key'")
    return Strategy("fair_round_robin", key)


class KeyedStrategy(Protocol):
    """`fair_round_robin` as it is called."""

    def __call__(self, key: str = "key") -> Strategy: ...


class QueueStrategy:
    """The four strategies under one name.

    >>> QueueStrategy().fair_round_robin("tenant_id") == fair_round_robin("tenant_id")
    True
    """

    fifo: ClassVar[staticmethod[[], Strategy]] = staticmethod(fifo)
    priority: ClassVar[staticmethod[[], Strategy]] = staticmethod(priority)
    lifo: ClassVar[staticmethod[[], Strategy]] = staticmethod(lifo)
    fair_round_robin: ClassVar[KeyedStrategy] = staticmethod(fair_round_robin)


_FACTORIES: dict[str, Callable[..., Strategy]] = {
    "fifo": fifo,
    "priority": priority,
    "lifo": lifo,
    "fair_round_robin": fair_round_robin,
}


StrategyOption = Strategy | StrategyKind | Callable[[], Strategy] | Mapping[str, Any] | None
"""The option *queue* of a pool."""


def read_strategy(value: object) -> Strategy:
    """Read the option *queue*: a `Strategy`, its name, its factory, or a mapping with `kind`."""
    if value is None:
        return priority()
    if isinstance(value, Strategy):
        return value
    if isinstance(value, str):
        return _FACTORIES[one_of("queue", value, KINDS)]()
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if value in _FACTORIES.values():
        return value()  # type: ignore[operator,no-any-return]
    raise InvalidOption("queue", value, f"one of {', '.join(KINDS)}")


def _from_mapping(value: Mapping[str, Any]) -> Strategy:
    kind = value.get("kind", value.get("strategy"))
    one_of("queue", value if kind is None else kind, KINDS)
    known = {"_type", "kind", "strategy"}
    if kind == "fair_round_robin":
        known |= {"key", "key_field"}
    for name in value:
        if name not in known:
            raise InvalidOption(
                f"queue.{name}", value[name], "no such key" + did_you_mean(name, known)
            )
    if kind == "fair_round_robin":
        return fair_round_robin(value.get("key", value.get("key_field", "key")))
    return _FACTORIES[kind]()
