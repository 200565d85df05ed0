"""The options of a supervisor: strategies, restart policies, children.

They are checked here and become frozen records; the other modules do not check them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from harn.duration import Duration, to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.naming import check_printable_name
from harn.option_checks import is_number, is_whole

if TYPE_CHECKING:
    from harn.supervisors.records import ChildContext

T = TypeVar("T")

Mode = Literal["never", "on_failure", "always"]
Strategy = Literal["one_for_one", "rest_for_one", "one_for_all", "escalate_to_parent"]

MODES: tuple[str, ...] = get_args(Mode)
STRATEGIES: tuple[str, ...] = get_args(Strategy)
LEASE_TTL_MS = 10_000
SHORTEST_TTL_MS = 100
LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class Restart:
    """When a child that has ended is started again, and when it is not.

    *mode* is `never`, `on_failure` or `always`. At most *max_restarts* (None: no limit) happen in
    any *window_ms*; with a window of 0 all restarts of the child count. After n restarts the next
    one waits `backoff_ms * factor**n`, at most *max_backoff_ms*, plus a jitter of up to *jitter_ms*
    that is the same in every run. With *circuit_open_ms*, a child that has used up its restarts is
    tried again after that time; without it, the child is not started again.

    >>> Restart(max_restarts=3, backoff_ms="1s").backoff_ms
    1000
    """

    mode: Mode = "on_failure"
    max_restarts: int | None = None
    window_ms: Duration = 60_000
    backoff_ms: Duration = 0
    factor: float = 2.0
    jitter_ms: Duration = 0
    max_backoff_ms: Duration = 30_000
    circuit_open_ms: Duration | None = None

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "mode", _word("mode", self.mode, MODES))
        if self.max_restarts is not None and not (
            is_whole(self.max_restarts) and self.max_restarts >= 0
        ):
            raise InvalidOption(
                "max_restarts", self.max_restarts, "0 or more, or None for no limit"
            )
        if not is_number(self.factor) or self.factor < 1:
            raise InvalidOption("factor", self.factor, "a number of at least 1")
        keep(self, "factor", float(self.factor))
        for name in ("window_ms", "backoff_ms", "jitter_ms", "max_backoff_ms"):
            keep(self, name, to_ms(getattr(self, name), name))
        if self.circuit_open_ms is not None:
            keep(self, "circuit_open_ms", to_ms(self.circuit_open_ms, "circuit_open_ms"))

    @property
    def policy(self) -> Policy:
        """The same values, in the units of `Policy`."""
        return Policy(
            self.mode,
            self.max_restarts,
            cast(int, self.window_ms) / 1000,
            cast(int, self.backoff_ms),
            self.factor,
            cast(int, self.jitter_ms),
            cast(int, self.max_backoff_ms),
            None if self.circuit_open_ms is None else cast(int, self.circuit_open_ms) / 1000,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """A `Restart`, checked: *window* and *circuit* are seconds, the delays milliseconds."""

    mode: Mode
    max_restarts: int | None
    window: float
    backoff_ms: int
    factor: float
    jitter_ms: int
    max_backoff_ms: int
    circuit: float | None


@dataclass(frozen=True, slots=True)
class Lease:
    """A name that one process at a time may hold; it expires *ttl_ms* after its last renewal.

    >>> Lease("persona:captain", ttl_ms="30s").ttl_ms
    30000
    """

    name: str
    ttl_ms: Duration = LEASE_TTL_MS

    def __post_init__(self) -> None:
        check_printable_name("active_lease", self.name, LONGEST_NAME)
        ttl_ms = to_ms(self.ttl_ms, "ttl_ms")
        if ttl_ms < SHORTEST_TTL_MS:
            raise InvalidOption("ttl_ms", self.ttl_ms, f"at least {SHORTEST_TTL_MS} ms")
        object.__setattr__(self, "ttl_ms", ttl_ms)


@dataclass(frozen=True, slots=True)
class Child:
    """One child of a supervisor: a name and the function to run.

    *task* is called with a `ChildContext`. It may be async or a plain function, which runs on a
    worker thread. If it returns a `Supervisor`, the child runs as long as that one does. *kind* is
    a label for users and tools. *restart* is a `Restart`, a mode, a mapping of its fields, or None
    for the supervisor's policy. *active_lease* is a `Lease`, or the name of one, that the child
    must hold to run.

    >>> Child("tick", print, restart="always").restart.mode
    'always'
    """

    name: str
    task: Callable[[ChildContext], Any]
    kind: str = "task"
    restart: Restart | Mode | Mapping[str, Any] | None = None
    active_lease: str | Lease | None = None

    def __post_init__(self) -> None:
        keep = object.__setattr__
        check_printable_name("name", self.name, LONGEST_NAME)
        check_printable_name("kind", self.kind, LONGEST_NAME)
        if not _takes_a_context(self.task):
            raise InvalidOption("task", self.task, "a function that takes the child's context")
        if self.restart is not None:
            keep(self, "restart", read_restart(self.restart))
        if isinstance(self.active_lease, str):
            keep(self, "active_lease", Lease(self.active_lease))
        elif self.active_lease is not None and not isinstance(self.active_lease, Lease):
            raise InvalidOption("active_lease", self.active_lease, "a lease's name, or a Lease")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A `Child`, checked, with the policy that applies to it."""

    index: int
    name: str
    kind: str
    task: Callable[..., Any]
    policy: Policy
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class SupervisorSpec:
    """The arguments of `supervisor_start`, checked."""

    name: str | None
    strategy: Strategy
    children: tuple[ChildSpec, ...]
    shutdown: float


def read_spec(
    name: str | None,
    strategy: str,
    children: Iterable[Child | Mapping[str, Any]],
    restart: Restart | str | Mapping[str, Any] | None,
    shutdown_ms: Duration,
) -> SupervisorSpec:
    """Check the arguments of `supervisor_start`; raise `InvalidOption` that names a wrong one."""
    if name is not None:
        check_printable_name("name", name, LONGEST_NAME)
    default = read_restart(restart) if restart is not None else Restart()
    return SupervisorSpec(
        name,
        read_strategy(strategy),
        tuple(_read_children(children, default)),
        to_ms(shutdown_ms, "shutdown_ms") / 1000,
    )


def read_strategy(strategy: str) -> Strategy:
    """Read a strategy's name; case, dashes and spaces do not matter.

    >>> read_strategy("Rest-for-one"), read_strategy("escalate")
    ('rest_for_one', 'escalate_to_parent')
    """
    if isinstance(strategy, str) and _plain(strategy) == "escalate":
        return "escalate_to_parent"
    return cast(Strategy, _word("strategy", strategy, STRATEGIES))


def read_restart(restart: Restart | str | Mapping[str, Any]) -> Restart:
    """Read a policy: a `Restart`, a mode, or a mapping of its fields.

    >>> read_restart("never").mode, read_restart({"max_restarts": 2}).max_restarts
    ('never', 2)
    """
    if isinstance(restart, Restart):
        return restart
    if isinstance(restart, str):
        return Restart(mode=cast(Mode, restart))
    if isinstance(restart, Mapping):
        return _from_mapping(Restart, restart, "restart")
    raise InvalidOption(
        "restart", restart, "a Restart, one of its modes, or a mapping of its fields"
    )


def _read_children(
    children: Iterable[Child | Mapping[str, Any]], default: Restart
) -> Iterable[ChildSpec]:
    accepted = "a list of at least one Child"
    if isinstance(children, str | Mapping | Child) or not isinstance(children, Iterable):
        raise InvalidOption("children", children, accepted)
    seen: set[str] = set()
    for index, given in enumerate(children):
        child = _from_mapping(Child, given, "child") if isinstance(given, Mapping) else given
        if not isinstance(child, Child):
            raise InvalidOption("children", given, accepted)
        if child.name in seen:
            raise InvalidOption("children", child.name, "a different name for each child")
        seen.add(child.name)
        restart = child.restart if isinstance(child.restart, Restart) else default
        lease = child.active_lease if isinstance(child.active_lease, Lease) else None
        yield ChildSpec(index, child.name, child.kind, child.task, restart.policy, lease)
    if not seen:
        raise InvalidOption("children", children, accepted)


def _from_mapping(kind: Callable[..., T], given: Mapping[str, Any], option: str) -> T:
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            near = did_you_mean(key, known)
            raise InvalidOption(option, key, f"one of {', '.join(known)}{near}")
    for name in ("name", "task"):
        if name in known and name not in given:
            raise InvalidOption(option, dict(given), f"a mapping with {name!r}")
    return kind(**given)


def _word(option: str, value: object, known: tuple[str, ...]) -> str:
    found = _plain(value) if isinstance(value, str) else None
    if found is None or found not in known:
        near = did_you_mean(found, known) if found else ""
        raise InvalidOption(option, value, f"one of {', '.join(known)}{near}")
    return found


def _plain(text: str) -> str:
    return text.strip().lower().replace("-", "_").replace(" ", "_")


def _takes_a_context(task: object) -> bool:
    if not callable(task):
        return False
    try:
        inspect.signature(task).bind(object())
    except ValueError:  # a builtin without a signature
        return True
    except TypeError:
        return False
    return True
