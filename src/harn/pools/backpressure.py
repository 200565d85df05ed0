"""What happens to a submit when the queue is full: pure decisions.

A `Backpressure` policy is data. `decide` looks at the numbers and returns what to do: `Admit`,
`Park`, `Evict`, `RejectNew` or `Refuse`. The pool carries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, assert_never, get_args

from harn.errors import InvalidOption, PoolBusy, PoolError, PoolFull, did_you_mean
from harn.option_checks import LARGEST, one_of, whole_number
from harn.pools.eviction import Arrivals, Longest, Oldest

OnFull = Literal["block_submitter", "drop_oldest", "drop_newest", "fail_submitter"]
Evictee = Literal["oldest", "longest"]
ON_FULL: tuple[str, ...] = get_args(OnFull)
EVICT: tuple[str, ...] = get_args(Evictee)


@dataclass(frozen=True, slots=True)
class BackpressurePolicy:
    """A policy as the caller chose it. A ring buffer's capacity is its *max_depth*.

    >>> BackpressurePolicy("queue", 100, "drop_oldest").as_dict()["on_full"]
    'drop_oldest'
    """

    kind: Literal["unbounded", "queue", "fail_fast", "ring_buffer"] = "unbounded"
    max_depth: int | None = None
    on_full: OnFull | None = None
    evict: Evictee | None = None

    @property
    def drops(self) -> bool:
        """Whether a full queue drops a task instead of refusing the submit."""
        return self.kind == "ring_buffer" or self.on_full in ("drop_oldest", "drop_newest")

    def arrivals(self) -> Arrivals[Any] | None:
        """Make the order in which this policy looks for a task to evict; None if it never does."""
        if self.kind == "ring_buffer":
            return Longest() if self.evict == "longest" else Oldest()
        return Oldest() if self.on_full == "drop_oldest" else None

    def as_dict(self) -> dict[str, Any]:
        """Return the policy, JSON-ready; fields that it does not use are left out."""
        shown: dict[str, Any] = {"_type": "backpressure", "kind": self.kind}
        for name in ("max_depth", "on_full", "evict"):
            if (value := getattr(self, name)) is not None:
                shown[name] = value
        return shown


UNBOUNDED = BackpressurePolicy()


def backpressure_queue(max_depth: int, on_full: OnFull = "block_submitter") -> BackpressurePolicy:
    """Keep at most *max_depth* tasks queued; *on_full* says what happens to a submit beyond that.

    `block_submitter` waits for a place, `drop_oldest` and `drop_newest` reject a task,
    `fail_submitter` raises `PoolFull`.

    >>> backpressure_queue(100).on_full
    'block_submitter'
    """
    one_of("on_full", on_full, ON_FULL)
    return BackpressurePolicy("queue", _depth("max_depth", max_depth), on_full)


def fail_fast() -> BackpressurePolicy:
    """Raise `PoolBusy` for any submit that cannot start at once; nothing is ever queued.

    >>> fail_fast().kind
    'fail_fast'
    """
    return BackpressurePolicy("fail_fast")


def ring_buffer(capacity: int, evict: Evictee = "oldest") -> BackpressurePolicy:
    """Keep the newest *capacity* queued tasks; an overflow rejects an older one.

    *evict* `"oldest"` takes the oldest of all, `"longest"` the oldest of the longest partition,
    so that a burst pushes out its own tasks and not those of quiet tenants.

    >>> ring_buffer(500, evict="longest").max_depth
    500
    """
    one_of("evict", evict, EVICT)
    return BackpressurePolicy("ring_buffer", _depth("capacity", capacity), evict=evict)


class QueuePolicy(Protocol):
    """`backpressure_queue` as it is called."""

    def __call__(
        self, max_depth: int, on_full: OnFull = "block_submitter"
    ) -> BackpressurePolicy: ...


class RingPolicy(Protocol):
    """`ring_buffer` as it is called."""

    def __call__(self, capacity: int, evict: Evictee = "oldest") -> BackpressurePolicy: ...


class Backpressure:
    """The policies under one name.

    >>> Backpressure().queue(100, "fail_submitter") == backpressure_queue(100, "fail_submitter")
    True
    """

    queue: ClassVar[QueuePolicy] = staticmethod(backpressure_queue)
    fail_fast: ClassVar[staticmethod[[], BackpressurePolicy]] = staticmethod(fail_fast)
    ring_buffer: ClassVar[RingPolicy] = staticmethod(ring_buffer)


def _depth(option: str, value: object) -> int:
    return whole_number(option, value, least=1, most=LARGEST, wanted="a whole number, 1 or more")


BackpressureOption = (
    BackpressurePolicy
    | Literal["unbounded", "fail_fast"]
    | Callable[[], BackpressurePolicy]
    | Mapping[str, Any]
    | None
)
"""The option *backpressure* of a pool."""


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
    kind: Any = one_of("backpressure.kind", value.get("kind"), _KEYS)
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
    """Let the submitter wait behind the submitters that wait already."""


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
    """Raise *error*; no task is made."""

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
    policy: BackpressurePolicy,
    *,
    queued: int,
    running: int,
    slots: int,
    ahead: int = 0,
    count: int = 1,
) -> Decision:
    """Decide on a submit into a pool with *slots*, of which *running* are taken.

    *ahead* counts the submitters that wait already: a new one does not overtake them. *count*
    calls are admitted together or not at all. A policy that drops tasks is asked for each call.
    """
    if policy.kind == "unbounded":
        return ADMIT
    free = 0 if queued else slots - running
    if policy.kind == "fail_fast":
        if count <= slots - running:
            return ADMIT
        return Refuse(PoolBusy, _too_busy(count, running, slots))
    assert policy.max_depth is not None
    if count <= free + policy.max_depth - queued and not ahead:
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
            return Refuse(PoolFull, full(queued, count))
        case _:
            assert_never(policy.on_full)


def full(queued: int, count: int = 1) -> str:
    """Say that a queue with *queued* tasks has no place for *count* more."""
    wanted = "" if count == 1 else f" and cannot take {count} more"
    return f"is full ({queued} queued){wanted}; wait, or raise max_depth"


def _too_busy(count: int, running: int, slots: int) -> str:
    wanted = "no free slot" if count == 1 else f"no {count} free slots"
    return f"has {wanted} ({running} of {slots} running)"
