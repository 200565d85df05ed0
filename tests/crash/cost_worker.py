"""A consumer of a queue that charges cost, as a process: it claims and acks until it is killed."""

from __future__ import annotations

import random
import sys

from msgspec.structs import replace

import harn
from harn import SchedulerPolicy, worker_queue

POLICY = SchedulerPolicy(
    strategy="drr", charge="cost", quantum=2, weights={"a": 3}, starvation_age_ms=0
)
IN_TREE = replace(POLICY, hierarchy="/", weights={"a": 3, "a/x": 2})


async def consume(seed: int, policy: SchedulerPolicy) -> None:
    queue, chance = worker_queue("q", policy), random.Random(seed)
    while True:
        for claim in await queue.claim_many(f"w-{seed}", chance.randint(1, 3), ttl="2s"):
            if chance.random() < 0.9:  # the others are left to their expiry
                await claim.ack(cost=chance.choice([None, None, 0, 2, 11.5]))
        await harn.sleep("20ms")


if __name__ == "__main__":
    policy = IN_TREE if sys.argv[3] == "tree" else POLICY
    harn.run(consume, int(sys.argv[2]), policy, storage=sys.argv[1])
