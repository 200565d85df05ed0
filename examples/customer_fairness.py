"""One customer sends five hundred tasks, another ten: the ten do not wait for the five hundred.

    python examples/customer_fairness.py

All tasks go through one pool of twenty. It walks from customer to customer, one task each; when the
small customer is done, the large one has all twenty to itself. A submit into a full queue waits:
nothing is dropped, and what is queued survives a restart.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from typing import Any

import harn
from harn import (
    Backpressure,
    SpawnToPool,
    TriggerEvent,
    channel_emit,
    durable,
    fair_round_robin,
    pool_create,
    pool_get,
    pool_wait,
    trigger_register,
)

finished: list[str] = []
go = asyncio.Event()  # set once every request is in, so that the customers really compete


@durable(name="customer_fairness:run_agent_task", rerun=True)
async def run_agent_task(tenant: str, kind: str, given: str) -> str:
    """Stand in for an agent at work."""
    await go.wait()
    await harn.sleep("10ms")
    finished.append(tenant)
    return f"{kind} of {given} for {tenant}"


def make_task(event: TriggerEvent) -> Any:
    """Make the closure for one request."""
    request = event.provider_payload["payload"]
    return partial(run_agent_task, request["tenant_id"], request["task_kind"], request["input"])


async def setup() -> None:
    """Make the pool, and route requests on a channel into it."""
    await pool_create(
        name="tenant-agents",
        max_concurrent=20,
        queue=fair_round_robin("tenant_id"),
        backpressure=Backpressure().queue(5000, "block_submitter"),
        scope="pipeline",
        pipeline_id="agents",
    )
    await trigger_register(
        id="tenant-agent-router",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:agent_task.requested"]},
        handler=SpawnToPool(
            pool="tenant-agents",
            key_from="provider_payload.payload.tenant_id",
            priority_from="provider_payload.payload.priority",
            task_factory=make_task,
        ),
    )


async def request(tenant: str, n: int) -> dict[str, Any]:
    """Ask for one task; the receipt is what `pool_wait` takes."""
    payload = {"tenant_id": tenant, "task_kind": "review", "input": f"PR {n}"}
    receipt = await channel_emit("agent_task.requested", payload)
    result: dict[str, Any] = receipt.dispatched[0].result
    return result


async def main() -> None:
    await setup()
    pool = pool_get("tenant-agents", required=True)
    large = await asyncio.gather(*(request("large", n) for n in range(500)))
    small = await asyncio.gather(*(request("small", n) for n in range(10)))
    print(f"{len(large)} requests of the large customer are in, then {len(small)} of the small one")
    go.set()
    await pool_wait(small)
    before = pool.snapshot(tasks=False)
    await pool_wait(large)

    print(f"when the small customer was done, {before.queued} tasks of the large one were queued")
    print(f"all {len(finished)} tasks are done")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        harn.run(main, state_dir=directory)
