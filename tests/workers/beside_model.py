"""A queue and a model of its rule, taken through the same steps: each pick must be the model's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

from harn import NewJob
from harn.workers import Claim, WorkerQueue, fairshare, key_heads
from tests.workers.model import MILLION, Waiting

PRIORITIES: Any = ("high", "normal", "low")


class Rule(Protocol):
    """A model: `tests/workers/model.py` and `tree_model.py` have them."""

    costs: dict[int, int]
    """What each job is expected to cost, in millionths."""

    def job(self, key: str, detail: Any) -> NewJob:
        """Return the job of a step."""

    def enter(self, job: Waiting, now: int) -> None:
        """Make a new job ready."""

    def pick(self, now: int) -> Waiting | None:
        """Serve one more job."""

    def end(self, id: int, key: str, now: int, cost: int | None) -> None:
        """Settle a job that really cost so many millionths."""

    def give_back(self, job: Waiting, now: int) -> None:
        """Release a job."""


@contextmanager
def few_stand_for_many(few: int, chunk: int) -> Iterator[None]:
    """Let the scheduler read as if a handful of keys were thousands."""
    with (
        mock.patch.object(fairshare, "KEYS_AT_ONCE", few),
        mock.patch.object(key_heads, "CHUNK", chunk),
    ):
        yield


async def take_steps(queue: WorkerQueue, model: Rule, steps: list[Any]) -> None:
    """Enqueue, claim, ack, release and wait as *steps* say, and expect the model's picks."""
    held: list[Claim] = []
    clock: Any = queue.runtime.clock
    for step, detail in steps:
        if step == "advance":
            await clock.advance(f"{detail}ms")
        else:
            await _take(queue, model, held, clock.now_ms(), step, detail)


async def _take(
    queue: WorkerQueue, model: Rule, held: list[Claim], now: int, step: str, detail: Any
) -> None:
    if step == "enqueue":
        jobs = [model.job(*each) for each in detail]
        for receipt, job in zip(await queue.enqueue_many(jobs), jobs, strict=True):
            model.costs[receipt.job_id] = round(job.cost * MILLION)
            model.enter(_waiting(receipt.job_id, now, job), now)
    elif step == "claim":
        claims = await queue.claim_many("w", detail, ttl="7d")
        expected: list[int] = []
        while len(expected) < detail and (picked := model.pick(now)):
            expected.append(picked.id)
        assert [claim.job.id for claim in claims] == expected
        held += claims
    elif step == "ack" and held:
        place, cost = detail
        settled = [held.pop(place % len(held)) for _ in range(min(len(held), 1 + place % 3))]
        await asyncio.gather(*(claim.ack(cost=cost) for claim in settled))
        real = None if cost is None else round(cost * MILLION)
        for claim in settled:
            model.end(claim.job.id, claim.job.tenant_id or "", now, real)
    elif step == "release" and held:
        claim = held.pop(detail % len(held))
        await claim.release()
        model.give_back(_waiting(claim.job.id, claim.job.enqueued_at_ms, claim.job), now)


def _waiting(id: int, at: int, job: Any) -> Waiting:
    return Waiting(id, job.tenant_id or "", PRIORITIES.index(job.priority), at)
