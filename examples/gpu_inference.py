"""Four GPUs, many tenants, one pool: a hard cap, and a fair turn for each tenant.

    python examples/gpu_inference.py [directory]

The pool runs as many calls as there are GPUs. A queue that is full says so (HARN-POL-001), and the
caller takes a smaller model instead. The pool is in a store, here SQLite in *directory*: start the
program several times with the same directory, and all of them share the four GPUs.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harn
from harn import (
    Backpressure,
    PoolFull,
    SpawnToPool,
    channel_emit,
    fair_round_robin,
    pool_create,
    pool_get,
    pool_wait,
    trigger_register,
)

GPUS = 4
served: list[str] = []
in_use = Counter[str]()
warm = asyncio.Event()  # the GPUs are ready: set once every request is in, so that all compete


directory = Path()


@contextmanager
def a_gpu() -> Iterator[None]:
    """Use a GPU that no process uses: a file stands for each. There is one, by the pool's cap."""
    for number in range(GPUS):
        try:
            os.close(os.open(directory / f"gpu{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        try:
            return (yield)
        finally:
            os.unlink(directory / f"gpu{number}")
    raise RuntimeError("no GPU is free")


async def run_gpu_inference(tenant: str, prompt: str) -> str:
    """Stand in for a model on a GPU."""
    in_use["now"] += 1
    in_use["most"] = max(in_use["most"], in_use["now"])
    with a_gpu():
        await warm.wait()
        await harn.sleep("10ms")
    in_use["now"] -= 1
    served.append(tenant)
    return f"answer to {prompt!r}"


async def setup(max_depth: int = 1000) -> None:
    """Make the pool, and route requests on a channel into it."""
    await pool_create(
        name="gpu-inference",
        max_concurrent=GPUS,
        queue=fair_round_robin("tenant_id"),
        backpressure=Backpressure().queue(max_depth, "fail_submitter"),
        scope="tenant",
    )

    def infer(event: harn.TriggerEvent) -> Any:
        request = event.provider_payload["payload"]
        return lambda: run_gpu_inference(request["tenant_id"], request["prompt"])

    await trigger_register(
        id="inference-router",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:inference.requested"]},
        handler=SpawnToPool(
            pool="gpu-inference",
            key_from="provider_payload.payload.tenant_id",
            task_factory=infer,
        ),
        retry={"max": 1},
    )


async def infer_now(tenant: str, prompt: str) -> str:
    """Ask for an answer and wait for it; a full queue means a smaller model."""
    pool = pool_get("gpu-inference", required=True)
    try:
        task = await pool.submit(run_gpu_inference, tenant, prompt, tenant_id=tenant)
    except PoolFull:
        return f"a smaller model's answer to {prompt!r}"
    return (await pool_wait(task)).result


async def main() -> None:
    """Send requests of two tenants through the channel, then ask directly."""
    await setup()
    receipts = [
        await channel_emit("inference.requested", {"tenant_id": tenant, "prompt": f"{tenant} {n}"})
        for tenant, count in (("busy", 40), ("quiet", 4))
        for n in range(count)
    ]
    warm.set()
    answers = await pool_wait([receipt.dispatched[0].result for receipt in receipts])
    assert {answer.status for answer in answers} == {"completed"}
    direct = await asyncio.gather(*(infer_now("direct", f"question {n}") for n in range(3)))

    print(f"{len(served)} calls, {in_use['most']} GPUs in use at most")
    print(f"the quiet tenant's last answer was number {_last('quiet')} of {len(receipts)}")
    print(direct[0])


def _last(tenant: str) -> int:
    return max(number for number, name in enumerate(served, 1) if name == tenant)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as own:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else own)
        harn.run(main, storage=f"sqlite:///{directory / 'pools.db'}", tenant_id="acme")
