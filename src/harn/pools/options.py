"""The options of a pool and of a submit, checked once into frozen records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from harn.current import current_frame
from harn.duration import Duration, to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.ids import pool_id
from harn.naming import MAX_NAME, check_data, check_name
from harn.option_checks import LARGEST, one_of, whole_number
from harn.pools.backpressure import BackpressurePolicy, read_backpressure
from harn.pools.queue_strategies import Strategy, read_strategy
from harn.runtime import Runtime
from harn.tasks import Isolation, check_isolation

Scope = Literal["session", "pipeline", "tenant", "org"]
SCOPES: tuple[str, ...] = get_args(Scope)
SHARED_SCOPES = ("tenant", "org")

SUBMIT_OPTIONS = ("priority", "key", "idempotency_key")


@dataclass(frozen=True, slots=True)
class Retention:
    """How many ended tasks a pool keeps, and for how long.

    A task's snapshot and idempotency key are dropped together; the key can then be used again.

    >>> Retention(count=1000, age="1h").age_ms
    3600000
    """

    count: int = 100_000
    age: Duration = "7d"
    age_ms: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        whole_number("retention.count", self.count, least=1, most=LARGEST)
        object.__setattr__(self, "age_ms", to_ms(self.age, "retention.age"))


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The checked options of a pool.

    >>> import harn
    >>> async def main() -> int:
    ...     pool = await harn.pool_create(name="review", max_concurrent=5)
    ...     return pool.snapshot().config["max_concurrent"]
    >>> harn.run(main)
    5
    """

    name: str
    max_concurrent: int
    queue: Strategy
    backpressure: BackpressurePolicy
    scope: Scope
    scope_id: str | None
    stale_after_ms: int
    isolation: Isolation
    retention: Retention
    run_here: bool = True
    """Of a shared pool: whether this process runs durable calls, also those of other processes."""

    @property
    def is_shared(self) -> bool:
        """Whether the scope is one that processes share: tenant or org."""
        return self.scope in SHARED_SCOPES

    @property
    def field(self) -> str | None:
        """The label by which the fair queue partitions; None if it partitions by `key`."""
        return self.queue.key if self.queue.key != "key" else None

    def as_dict(self) -> dict[str, Any]:
        """Return the options, JSON-ready."""
        shown: dict[str, Any] = {
            "name": self.name,
            "max_concurrent": self.max_concurrent,
            "queue": self.queue.as_dict(),
            "backpressure": self.backpressure.as_dict(),
            "scope": self.scope,
            "stale_after_ms": self.stale_after_ms,
            "isolation": self.isolation,
            "retention": {"count": self.retention.count, "age_ms": self.retention.age_ms},
        }
        if self.scope == "pipeline":
            shown["pipeline_id"] = self.scope_id
        if self.is_shared:
            shown |= {"scope_id": self.scope_id, "run_here": self.run_here}
        return shown


def read_options(
    runtime: Runtime,
    *,
    name: str | None,
    max_concurrent: int,
    queue: object,
    backpressure: object,
    scope: str | None,
    pipeline_id: str | None,
    stale_after_ms: Duration,
    isolation: Isolation,
    retention: Retention,
    scope_id: str | None = None,
    run_here: bool = True,
) -> PoolOptions:
    """Check every option of `pool_create`; raise `InvalidOption` for the first wrong one."""
    checked = _scope(scope)
    if not isinstance(retention, Retention):
        raise InvalidOption("retention", retention, "Retention(count=..., age=...)")
    if not isinstance(run_here, bool):
        raise InvalidOption("run_here", run_here, "True or False")
    if checked not in SHARED_SCOPES and (scope_id is not None or not run_here):
        option, value = ("run_here", False) if scope_id is None else ("scope_id", scope_id)
        raise InvalidOption(option, value, "only for a pool of scope 'tenant' or 'org'")
    return PoolOptions(
        name=_pool_name(name, runtime),
        max_concurrent=whole_number("max_concurrent", max_concurrent, least=1, most=LARGEST),
        queue=read_strategy(queue),
        backpressure=read_backpressure(backpressure),
        scope=checked,
        scope_id=_scope_id(checked, pipeline_id, scope_id, runtime),
        stale_after_ms=to_ms(stale_after_ms, "stale_after_ms"),
        isolation=check_isolation(isolation),
        retention=retention,
        run_here=run_here,
    )


def new_pool_id(options: PoolOptions, runtime: Runtime) -> str:
    """Return the pool's id: the same in every process, unless its scope is the session."""
    if options.scope_id is None:
        return runtime.ids.new("pool")
    return pool_id(options.scope, options.scope_id, options.name)


def _pool_name(name: str | None, runtime: Runtime) -> str:
    if name is None:
        return runtime.ids.new("pool")
    return check_name("name", name)


def _scope(scope: str | None) -> Scope:
    if scope is None or scope == "":
        return "session"
    return cast(Scope, one_of("scope", scope, SCOPES))


def _scope_id(
    scope: Scope, pipeline_id: str | None, scope_id: str | None, runtime: Runtime
) -> str | None:
    if pipeline_id is not None:
        check_data("pipeline_id", pipeline_id, MAX_NAME)
    ambient = current_frame().task.ambient
    if scope == "session":
        return None
    if scope == "pipeline":
        found = pipeline_id or ambient.pipeline_id or ambient.workflow_id or ambient.run_id
        if found is None:
            raise InvalidOption(
                "pipeline_id", None, "an id, because scope is 'pipeline' and no pipeline is active"
            )
        return found
    if scope_id is not None:
        return check_data("scope_id", scope_id, MAX_NAME)
    ambient_id = ambient.tenant_id if scope == "tenant" else ambient.org_id
    if ambient_id is None and runtime.pool_host is not None:
        return "default"
    if ambient_id is None and not runtime.storage_url.startswith("memory:"):
        raise InvalidOption(
            "scope_id", None, f"the id of the {scope}: the runtime has no {scope}_id to take"
        )
    return ambient_id or "default"


def exact(option: str, value: object) -> str:
    """Return *value* if it is a string that UTF-8 can encode."""
    if not isinstance(value, str):
        raise InvalidOption(option, value, "a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidOption(option, value, "a string without lone surrogates") from None
    return value


def check_labels(labels: dict[str, Any], field: str | None) -> dict[str, Any]:
    """Check the labels of a submit; raise `InvalidOption` for one like a misspelt option."""
    for name, value in labels.items():
        if name != field and (near := did_you_mean(name, _known(field))):
            raise InvalidOption(name, value, f"no such option{near}")
        if value is not None:
            exact(name, value)
    if None in labels.values():
        return {name: value for name, value in labels.items() if value is not None}
    return labels


def _known(field: str | None) -> Iterable[str]:
    return SUBMIT_OPTIONS if field is None else (*SUBMIT_OPTIONS, field)
