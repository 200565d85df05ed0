"""Consumers of one queue, really killed: together they keep one exact account of its costs."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harn import Event, NewJob, Runtime, event_log_read, worker_queue
from harn.storage import Store
from harn.storage.log.rebuild import compare
from harn.storage.queue import JobIndex
from tests.crash.cost_worker import POLICY
from tests.workers.model import MILLION, CostModel, Waiting

WORKER = Path(__file__).with_name("cost_worker.py")
JOBS = 150
"""Jobs of each key: more than the processes take before the last of them is killed."""


@contextmanager
def consumer(url: str, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(WORKER), url, str(seed)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_D16_killed_consumers_keep_one_exact_account_of_costs(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, at_least: Callable[[int], int]
) -> None:
    url = f"sqlite:///{tmp_path}/harn.db"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    async with Runtime(storage=url) as runtime:
        jobs = [
            NewJob(0, tenant_id=key, cost=cost, max_attempts=0)
            for key, cost in zip(itertools.cycle("abc"), costs(), strict=False)
        ]
        receipts = await worker_queue("q", POLICY).enqueue_many(jobs)
        with consumer(url, 1), consumer(url, 2):
            for seed in range(3, 3 + at_least(2)):
                with consumer(url, seed):
                    await until_claimed(12)  # then it is killed
        claims = await event_log_read("worker.q.claims")
        broken = await runtime.service(Store).run(lambda: compare([JobIndex()]))

    model = CostModel(POLICY.weights, POLICY.quantum)
    for receipt, job in zip(receipts, jobs, strict=True):
        model.costs[receipt.job_id] = round(job.cost * MILLION)
        model.enter(Waiting(receipt.job_id, str(job.tenant_id), 1, 0), 0)
    keys = {receipt.job_id: str(job.tenant_id) for receipt, job in zip(receipts, jobs, strict=True)}
    follow(model, keys, claims)
    assert broken == []


def costs() -> Iterator[float]:
    return itertools.islice(itertools.cycle([1, 0, 4, 0.25, 9, 1, 1]), 3 * JOBS)


async def until_claimed(more: int) -> None:
    """Wait until so many more jobs have been claimed, by any process, or none is left."""
    queue = worker_queue("q", POLICY)
    async with asyncio.timeout(60):
        wanted = len(await claimed()) + more
        while len(await claimed()) < wanted and (await queue.summary()).acked < 3 * JOBS:
            await asyncio.sleep(0.02)


async def claimed() -> list[Event]:
    return [each for each in await event_log_read("worker.q.claims") if each.kind == "job_claimed"]


def follow(model: CostModel, keys: dict[int, str], claims: list[Event]) -> None:
    """Expect each claim to be the model's next pick, and to leave the model's credit."""
    held: dict[int, str] = {}
    for event in claims:
        now, record = event.occurred_at_ms, event.payload
        if event.kind == "job_claimed":
            job, told = model.pick(now), record["scheduling"]
            assert job is not None and job.id == record["job_event_id"]
            assert told["charged_millionths"] == model.charged[job.id]
            if model.has_ready(job.key):
                assert told["credit_millionths"] == model.credit[job.key]
            held[job.id] = job.key
        elif event.kind == "job_acked":
            id = record["job_event_id"]
            real: Any = record.get("charged_millionths")
            model.end(id, held.pop(id), now, real)
        elif event.kind == "jobs_woken":  # a claim has expired: what it was charged stays
            for id in record["job_event_ids"]:
                key = held.pop(id)
                model.in_flight[key] -= 1
                model.enter(Waiting(id, key, 1, 0), now)
