"""Whether every slot of the shared pools in a store is held by a process that can free it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from harn.storage import Store
from harn.storage.leases import LeaseStore, list_consumers
from harn.storage.queue import shared_pools

if TYPE_CHECKING:
    from harn.runtime import Runtime

MOST_LISTED = 100_000


async def leaked_slots(runtime: Runtime) -> list[str]:
    """Describe each slot that no process holds or will free.

    It only reads, so cancelling leaves nothing behind.

    A slot is held under the lease of its process. While the lease is listed, the process is alive,
    or the next one that looks ends what it left. A slot whose lease is not listed would be taken
    forever. So would one that the pool's shares count and no running task has.
    """
    found = await _look(runtime)
    if found:  # a process may have stopped between the two reads: what is still there counts
        again = await _look(runtime)
        found = [each for each in found if each in again]
    return found


async def _look(runtime: Runtime) -> list[str]:
    pools = await runtime.service(Store).run(shared_pools.list_pools, write=False)
    leases = runtime.service(LeaseStore)
    listed: set[str | None] = set()
    if pools and leases.is_there:
        rows = await leases.store.run(partial(list_consumers, MOST_LISTED), write=False)
        listed = {row.lease for row in rows}
    found = []
    for pool in pools:
        named = f"pool {pool.settings.name!r} of {pool.settings.scope} {pool.settings.scope_id!r}"
        found += [
            f"{named}: task {slot.task} holds a slot under the lease {slot.lease}, which no "
            "process has"
            for slot in pool.held
            if slot.lease not in listed
        ]
        taken = pool.counts.totals.running
        if taken != len(pool.held):
            found.append(f"{named}: {taken} slots are taken, {len(pool.held)} tasks run")
    return found
