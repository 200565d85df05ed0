"""The seam for tenant and org pools: an application that embeds harn may provide a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harn.errors import PoolScopeUnavailable
from harn.pools.options import PoolOptions

if TYPE_CHECKING:
    from harn.pools.pool import Pool
    from harn.runtime import Runtime


@runtime_checkable
class PoolHost(Protocol):
    """Gives a runtime its tenant and org pools: `Runtime(pool_host=...)`.

    A budget that many pipelines or tenants share cannot live in one process's memory, so harn
    asks its host. The host returns a `Pool` (or a subclass that routes its submits elsewhere)
    for the scope, the scope's id and the name in *options*, the same one each time it is asked
    until that pool is closed. It owns the pool's state and its durability; the runtime registers
    the pool, and releases it when it is left.

    >>> import harn
    >>> class Host:
    ...     async def open_pool(self, options, runtime):
    ...         return harn.Pool(runtime, options, options.name)
    ...     async def release(self, pool, runtime):
    ...         await pool.close()
    >>> async def main() -> bool:
    ...     return isinstance(Host(), harn.PoolHost)
    >>> harn.run(main)
    True
    """

    async def open_pool(self, options: PoolOptions, runtime: Runtime) -> Pool:
        """Open the pool that *options* describe.

        Cancelling must leave nothing open.
        """

    async def release(self, pool: Pool, runtime: Runtime) -> None:
        """Take back a pool that a runtime was given and no longer uses; other runtimes may.

        Cancelling may leave it to the host when it takes the pool back.
        """


async def open_hosted(options: PoolOptions, runtime: Runtime) -> Pool:
    """Open a tenant or org pool, of the host or in the store. Cancelling leaves none open."""
    host = runtime.pool_host
    if host is not None:
        pool: Pool = await host.open_pool(options, runtime)
        return pool
    if runtime.storage_url.startswith("memory:"):
        raise PoolScopeUnavailable(
            f"scope {options.scope!r} is shared by processes, or host-managed: pool "
            f"{options.name!r} needs a runtime with a durable store, Runtime(storage=...), or with "
            f"a host, Runtime(pool_host=...); in one process use scope 'session' or 'pipeline'"
        )
    from harn.pools.shared_pool import open_shared

    return await open_shared(options, runtime)
