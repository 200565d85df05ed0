"""The pools of a runtime by name and by id, and the public functions on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, ParamSpec, overload

from harn import ids
from harn.current import current_runtime
from harn.duration import Duration
from harn.errors import InvalidOption, PoolExists, PoolNotFound, did_you_mean
from harn.naming import check_data, check_name
from harn.pools.backlogs import Backlogs
from harn.pools.backpressure import BackpressureOption
from harn.pools.metrics import pool_samples
from harn.pools.options import (
    SHARED_SCOPES,
    PoolOptions,
    Retention,
    Scope,
    new_pool_id,
    read_options,
)
from harn.pools.pending_tasks import pending_tasks
from harn.pools.persistence import Persistence
from harn.pools.pool import Pool
from harn.pools.pool_host import open_hosted
from harn.pools.queue_strategies import StrategyOption
from harn.runtime import Runtime
from harn.tasks import Isolation
from harn.teardown import choose_error, finish
from harn.telemetry.metrics import Metrics
from harn.unsettled_sources import UnsettledSources

P = ParamSpec("P")


DEFAULT_RETENTION = Retention()


class PoolRegistry:
    """Every live pool of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._by_name: dict[str, Pool] = {}
        self._by_id: dict[str, Pool] = {}
        self._opening: set[str] = set()
        # Services close in reverse order of their start, so the log outlives the pools.
        runtime.event_log  # noqa: B018
        runtime.service(Metrics).add(lambda: pool_samples(self))
        runtime.service(UnsettledSources).add(
            "pool_pending_tasks", lambda: pending_tasks(self, runtime.clock.now_ms())
        )

    async def create(self, options: PoolOptions) -> Pool:
        """Open the pool that *options* describe. After a cancel there is no pool of this name."""
        name = options.name
        if name in self._by_name or name in self._opening:
            known = self._by_name.get(name)
            raise PoolExists(
                f"pool {name!r} exists already ({known.id if known else 'being opened'}); "
                f"pool_get({name!r}) returns it"
            )
        self._opening.add(name)
        try:
            pool = await self._open(options)
        finally:
            self._opening.discard(name)
        self._by_name[pool.name] = self._by_id[pool.id] = pool
        pool._on_closed = self._forget
        return pool

    async def _open(self, options: PoolOptions) -> Pool:
        if options.is_shared:
            return await open_hosted(options, self._runtime)
        pool = Pool(self._runtime, options, new_pool_id(options, self._runtime))
        if options.scope == "pipeline":
            leaves_backlog = self._runtime.service(Backlogs).are_left
            await Persistence(pool, leaves_backlog=leaves_backlog).open()
        return pool

    def get(self, name_or_id: str) -> Pool | None:
        """Return the pool with this name, else the one with this id."""
        return self._by_name.get(name_or_id) or self._by_id.get(name_or_id)

    def by_id(self, id: str) -> Pool | None:
        """Return the pool with this id; a pool whose name looks like it is not found."""
        return self._by_id.get(id)

    def __iter__(self) -> Iterator[Pool]:
        return iter(sorted(self._by_id.values(), key=lambda pool: pool._created_ms))

    def _forget(self, pool: Pool) -> None:
        if self._by_id.get(pool.id) is pool:
            del self._by_id[pool.id]
        if self._by_name.get(pool.name) is pool:
            del self._by_name[pool.name]

    def abandon(self) -> None:
        """Drop every pool as if the process had died."""
        for pool in list(self):
            pool._slots.drop()

    async def aclose(self) -> None:
        """Close every pool and cancel its running tasks, when the runtime is left.

        The error of one pool, or of its host, is raised when all others are closed too.
        """
        failures: list[BaseException] = []
        for pool in list(self):
            await finish(self._leave(pool), failures)
        if (error := choose_error(None, failures)) is not None:
            raise error

    async def _leave(self, pool: Pool) -> None:
        host = self._runtime.pool_host
        if pool.scope in SHARED_SCOPES and hasattr(host, "release"):
            self._forget(pool)
            await host.release(pool, self._runtime)
        else:
            await pool.close(cancel=True)


def _with_keywords(
    create: Callable[P, Coroutine[Any, Any, Pool]],
) -> Callable[P, Coroutine[Any, Any, Pool]]:
    """Make *create* explain that its options are keywords, if it is called with positional ones."""

    @functools.wraps(create)
    async def checked(*args: P.args, **options: P.kwargs) -> Pool:
        if args:
            raise TypeError(
                f"pool_create takes no {type(args[0]).__name__}: its options are keywords, as in "
                'pool_create(name="review", max_concurrent=5)'
            )
        return await create(*args, **options)

    return checked


@_with_keywords
async def pool_create(
    *,
    name: str | None = None,
    max_concurrent: int = 1,
    queue: StrategyOption = None,
    backpressure: BackpressureOption = None,
    scope: Scope = "session",
    pipeline_id: str | None = None,
    stale_after_ms: Duration = 30_000,
    isolation: Isolation = "auto",
    retention: Retention = DEFAULT_RETENTION,
    scope_id: str | None = None,
    run_here: bool = True,
) -> Pool:
    """Create a pool and register it under *name*, which must be free in this runtime.

    *queue* is a strategy (the default is `priority()`), *backpressure* a policy (by default the
    queue is unbounded). A pool of scope `"pipeline"` is kept in a journal on disk and restores the
    tasks that an earlier process left there. *stale_after_ms* is only recorded and shown: a journal
    has one owner, so an unfinished task of an earlier process is stale at once. After a cancel
    there is no pool.

    A pool of scope `"tenant"` or `"org"` lives in the runtime's store, which must be durable: every
    process that opens it under the same *scope_id* (by default the runtime's `tenant_id` or
    `org_id`) shares its queue, its order and its slots. Durable calls run in each process that
    opened it with *run_here*, closures where they were submitted.

    >>> import harn
    >>> async def main() -> str:
    ...     pool = await harn.pool_create(name="review", max_concurrent=5)
    ...     task = await pool.submit(lambda: "looks good", priority=10)
    ...     return await task
    >>> harn.run(main)
    'looks good'
    """
    runtime = current_runtime()
    registry = runtime.service(PoolRegistry)
    options = read_options(
        runtime,
        name=name,
        max_concurrent=max_concurrent,
        queue=queue,
        backpressure=backpressure,
        scope=scope,
        pipeline_id=pipeline_id,
        stale_after_ms=stale_after_ms,
        isolation=isolation,
        retention=retention,
        scope_id=scope_id,
        run_here=run_here,
    )
    return await registry.create(options)


@overload
def pool_get(name_or_id: str, *, required: Literal[True]) -> Pool: ...
@overload
def pool_get(name_or_id: str, *, required: bool = False) -> Pool | None: ...
def pool_get(name_or_id: str, *, required: bool = False) -> Pool | None:
    """Return the live pool with this name, or else this id; None when there is none.

    With *required* there must be one: `PoolNotFound` otherwise.

    >>> import harn
    >>> async def main() -> bool:
    ...     pool = await harn.pool_create(name="review")
    ...     return harn.pool_get("review", required=True) is pool is harn.pool_get(pool.id)
    >>> harn.run(main)
    True
    """
    if not isinstance(name_or_id, str):
        raise InvalidOption("name_or_id", name_or_id, "a pool's name or id")
    if not isinstance(required, bool):
        raise InvalidOption("required", required, "True or False")
    registry = current_runtime().service(PoolRegistry)
    pool = registry.get(name_or_id)
    if pool is None and required:
        near = did_you_mean(name_or_id, [each.name for each in registry])
        raise PoolNotFound(
            f"this runtime has no pool {name_or_id!r}{near or '; pool_create makes one'}"
        )
    return pool


def pool_id(scope: str, scope_id: str, name: str) -> str:
    """Return the id that the pool *name* of this scope has in every process.

    It is the id of a pipeline, tenant or org pool; session pools have ids of their own.

    >>> pool_id("tenant", "acme", "gpu-inference")
    'pool_tenant_4c02a3a449ee46cd7dc8beb3faa38169'
    """
    if scope not in ("pipeline", *SHARED_SCOPES):
        raise InvalidOption("scope", scope, "pipeline, tenant or org")
    return ids.pool_id(scope, check_data("scope_id", scope_id), check_name("name", name))


def pool_list() -> list[Pool]:
    """Return every live pool of this runtime, oldest first.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     await harn.pool_create(name="a")
    ...     await harn.pool_create(name="b")
    ...     return [pool.name for pool in harn.pool_list()]
    >>> harn.run(main)
    ['a', 'b']
    """
    return list(current_runtime().service(PoolRegistry))


def pool_simulate_restart() -> None:
    """Drop every pool of this runtime as if the process had died, for tests.

    Nothing on disk is changed: a pipeline pool that is created again finds its journal as a crash
    would have left it. Running closures continue without their pool; queued tasks never run.

    >>> import harn
    >>> async def main() -> object:
    ...     await harn.pool_create(name="review")
    ...     harn.pool_simulate_restart()
    ...     return harn.pool_get("review")
    >>> harn.run(main) is None
    True
    """
    runtime = current_runtime()
    runtime.forget(Backlogs)
    registry = runtime.forget(PoolRegistry)
    if registry is not None:
        registry.abandon()
