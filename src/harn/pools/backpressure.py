"""What happens to a submit when the queue is full: pure decisions.

A `Backpressure` policy is data. `decide` looks at the numbers and returns what to do: `Admit`,
`Park`, `Evict`, `RejectNew` or `Refuse`; the pool carries it out. Policies that evict need an
order of arrival beside the queue's own: `Oldest` or `Longest`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar, assert_never, get_args

from harn.checks import LARGEST, whole_number
from harn.errors import InvalidOption, PoolBusy, PoolError, PoolFull, did_you_mean
from harn.pools.strategies import Queued

OnFull = Literal["block_submitter", "drop_oldest", "drop_newest", "fail_submitter"]
Evictee = Literal["oldest", "longest"]
ON_FULL: tuple[str, ...] = get_args(OnFull)
EVICT: tuple[str, ...] = get_args(Evictee)


@dataclass(frozen=True, slots=True)
class BackpressurePolicy:
    """A policy as the caller chose it. A ring buffer's capacity is its *max_depth*."""

    kind: Literal["unbounded", "queue", "fail_fast", "ring_buffer"] = "unbounded"
    max_depth: int | None = None
    on_full: OnFull | None = None
    evict: Evictee | None = None

    def order(self) -> Arrivals[Any] | None:
        """Make the order in which this policy looks for a victim; None if it never does."""
        if self.kind == "ring_buffer":
            return Longest() if self.evict == "longest" else Oldest()
        return Oldest() if self.on_full == "drop_oldest" else None

    def as_dict(self) -> dict[str, Any]:
        """Return the policy, JSON-ready; what it has no use for is left out."""
        shown: dict[str, Any] = {"_type": "backpressure", "kind": self.kind}
        for name in ("max_depth", "on_full", "evict"):
            if (value := getattr(self, name)) is not None:
                shown[name] = value
        return shown


UNBOUNDED = BackpressurePolicy()


def backpressure_queue(max_depth: int, on_full: str = "block_submitter") -> BackpressurePolicy:
    """Keep at most *max_depth* tasks queued; *on_full* says what a submit beyond that meets.

    `block_submitter` waits for a place, `drop_oldest` and `drop_newest` reject a task,
    `fail_submitter` raises `PoolFull`.

    >>> backpressure_queue(100).on_full
    'block_submitter'
    """
    if on_full not in ON_FULL:
        near = did_you_mean(on_full, ON_FULL) if isinstance(on_full, str) else ""
        raise InvalidOption("on_full", on_full, f"one of {', '.join(ON_FULL)}{near}")
    return BackpressurePolicy("queue", _depth("max_depth", max_depth), on_full)  # type: ignore[arg-type]


def fail_fast() -> BackpressurePolicy:
    """Raise `PoolBusy` for any submit that cannot start at once; nothing is ever queued.

    >>> fail_fast().kind
    'fail_fast'
    """
    return BackpressurePolicy("fail_fast")


def ring_buffer(capacity: int, evict: str = "oldest") -> BackpressurePolicy:
    """Keep the newest *capacity* queued tasks; an overflow rejects an older one.

    *evict* `"oldest"` takes the oldest of all, `"longest"` the oldest of the longest partition,
    so that a burst pushes out its own tasks and not those of quiet tenants.

    >>> ring_buffer(500, evict="longest").max_depth
    500
    """
    if evict not in EVICT:
        raise InvalidOption("evict", evict, f"one of {', '.join(EVICT)}")
    return BackpressurePolicy("ring_buffer", _depth("capacity", capacity), evict=evict)  # type: ignore[arg-type]


class Backpressure:
    """The policies under one name.

    >>> Backpressure().queue(100, "fail_submitter") == backpressure_queue(100, "fail_submitter")
    True
    """

    queue = staticmethod(backpressure_queue)
    fail_fast = staticmethod(fail_fast)
    ring_buffer = staticmethod(ring_buffer)


def _depth(option: str, value: object) -> int:
    return whole_number(option, value, least=1, most=LARGEST, wanted="a whole number, 1 or more")


def read_backpressure(value: object) -> BackpressurePolicy:
    """Read the option *backpressure*: a policy, `"fail_fast"`, `"unbounded"`, or a mapping."""
    if value is None or value == "unbounded":
        return UNBOUNDED
    if isinstance(value, BackpressurePolicy):
        return value
    if value == "fail_fast" or value is fail_fast:
        return fail_fast()
    if isinstance(value, Mapping):
        return _from_mapping(value)
    raise InvalidOption(
        "backpressure",
        value,
        "backpressure_queue(max_depth), ring_buffer(capacity), fail_fast() or None",
    )


_KEYS = {
    "unbounded": set[str](),
    "fail_fast": set[str](),
    "queue": {"max_depth", "capacity", "on_full"},
    "ring_buffer": {"max_depth", "capacity", "evict"},
}


def _from_mapping(value: Mapping[str, Any]) -> BackpressurePolicy:
    kind = value.get("kind")
    if kind not in _KEYS:
        near = did_you_mean(kind, _KEYS) if isinstance(kind, str) else ""
        raise InvalidOption("backpressure.kind", kind, f"one of {', '.join(_KEYS)}{near}")
    for name in value:
        if name not in _KEYS[kind] | {"kind", "_type"}:
            near = did_you_mean(name, _KEYS[kind])
            raise InvalidOption(f"backpressure.{name}", value[name], f"no such key{near}")
    depth = value.get("max_depth", value.get("capacity"))
    if kind == "queue":
        return backpressure_queue(depth, value.get("on_full", "block_submitter"))
    if kind == "ring_buffer":
        return ring_buffer(depth, value.get("evict", "oldest"))
    return fail_fast() if kind == "fail_fast" else UNBOUNDED


@dataclass(frozen=True, slots=True)
class Admit:
    """Take the task: it runs at once or there is a place in the queue."""


@dataclass(frozen=True, slots=True)
class Park:
    """Let the submitter wait behind those that wait already."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Reject a queued task for *reason* under *policy*, then take the new one."""

    reason: str
    policy: str


@dataclass(frozen=True, slots=True)
class RejectNew:
    """Return the new task as rejected for *reason* under *policy*."""

    reason: str
    policy: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Raise *error*; nothing stays behind."""

    error: type[PoolError]
    why: str


Decision = Admit | Park | Evict | RejectNew | Refuse

ADMIT = Admit()
PARK = Park()
DROP_OLDEST = Evict("drop_oldest_queue_full", "drop_oldest")
DROP_NEWEST = RejectNew("drop_newest_queue_full", "drop_newest")
RING_OLDEST = Evict("ring_buffer_drop_oldest", "ring_buffer")
RING_LONGEST = Evict("ring_buffer_drop_longest", "ring_buffer")


def decide(
    policy: BackpressurePolicy, *, queued: int, running: int, slots: int, ahead: int = 0
) -> Decision:
    """Decide about one submit into a pool with *slots*, of which *running* are taken.

    *ahead* counts submitters that were parked earlier: nobody overtakes them.
    """
    if running < slots and not queued and not ahead:
        return ADMIT
    if policy.kind == "unbounded":
        return ADMIT
    if policy.kind == "fail_fast":
        if running < slots:
            return ADMIT
        return Refuse(PoolBusy, f"has no free slot ({running} of {slots} running)")
    assert policy.max_depth is not None
    if queued < policy.max_depth and not ahead:
        return ADMIT
    if policy.kind == "ring_buffer":
        return RING_LONGEST if policy.evict == "longest" else RING_OLDEST
    assert policy.on_full is not None
    match policy.on_full:
        case "block_submitter":
            return PARK
        case "drop_oldest":
            return DROP_OLDEST
        case "drop_newest":
            return DROP_NEWEST
        case "fail_submitter":
            return Refuse(PoolFull, f"is full ({queued} queued); wait, or raise max_depth")
        case _:
            assert_never(policy.on_full)


T = TypeVar("T", bound=Queued)


class Arrivals(Protocol[T]):
    """Queued tasks in an order of their own, to find who is evicted."""

    def add(self, task: T) -> None:
        """Note that *task* was queued."""

    def discard(self, task: T) -> None:
        """Note that *task* left the queue."""

    def victim(self, newcomer: str | None) -> T:
        """Return whom a task of partition *newcomer* pushes out. There must be someone."""


class Oldest(Generic[T]):
    """Every queued task, oldest first. A dict would rescan its own gaps at each look."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[T, None] = OrderedDict()

    def add(self, task: T) -> None:
        self._tasks[task] = None

    def discard(self, task: T) -> None:
        self._tasks.pop(task, None)

    def victim(self, newcomer: str | None) -> T:
        return next(iter(self._tasks))


class Longest(Generic[T]):
    """Queued tasks by partition, and the partitions by their length.

    A length changes by one at a time, so a shelf for each length and the number of the highest
    one find the longest partition without searching.
    """

    def __init__(self) -> None:
        self._lines: dict[str | None, OrderedDict[T, None]] = {}
        self._shelves: dict[int, OrderedDict[str | None, None]] = {0: OrderedDict()}
        self._longest = 0

    def add(self, task: T) -> None:
        line = self._lines.setdefault(task.partition, OrderedDict())
        line[task] = None
        self._move(task.partition, len(line) - 1, len(line))
        self._longest = max(self._longest, len(line))

    def discard(self, task: T) -> None:
        line = self._lines.get(task.partition)
        if line is None or task not in line:
            return
        del line[task]
        self._move(task.partition, len(line) + 1, len(line))
        if self._longest not in self._shelves:
            self._longest -= 1
        if not line:
            del self._lines[task.partition]

    def victim(self, newcomer: str | None) -> T:
        """Return the oldest of the longest partition; on a tie the newcomer's own gives way."""
        if len(self._lines.get(newcomer, ())) == self._longest:
            return next(iter(self._lines[newcomer]))
        return next(iter(self._lines[next(iter(self._shelves[self._longest]))]))

    def _move(self, partition: str | None, before: int, after: int) -> None:
        if before:
            shelf = self._shelves[before]
            del shelf[partition]
            if not shelf:
                del self._shelves[before]
        if after:
            self._shelves.setdefault(after, OrderedDict())[partition] = None
