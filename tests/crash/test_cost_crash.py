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
from harn.storage.queue.share_tree import lineage
from tests.crash.cost_worker import IN_TREE, POLICY
from tests.workers.model import MILLION, CostModel, Waiting
from tests.workers.tree_model import TreeModel

WORKER = Path(__file__).with_name("cost_worker.py")
JOBS = 150
"""Jobs of each key: more than the processes take before the last of them is killed."""


@contextmanager
def consumer(url: str, seed: int, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(WORKER), url, str(seed), kind])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/harn.db"


async def test_D16_killed_consumers_keep_one_exact_account_of_costs(
    url: str, at_least: Callable[[int], int]
) -> None:
    model = CostModel(POLICY.weights, POLICY.quantum)

    keys, claims = await serve_and_kill(url, "flat", model, ("a", "b", "c"), at_least(2))

    follow(model, keys, claims)


async def test_D22_killed_consumers_keep_one_exact_account_of_a_tree(
    url: str, at_least: Callable[[int], int]
) -> None:
    model = TreeModel(IN_TREE)

    keys, claims = await serve_and_kill(url, "tree", model, ("a/x", "a/y", "b"), at_least(2))

    follow(model, keys, claims)


async def serve_and_kill(
    url: str, kind: str, model: CostModel | TreeModel, tenants: tuple[str, ...], kills: int
) -> tuple[dict[int, str], list[Event]]:
    """Let consumers serve jobs of all *tenants*, kill some; return each job's key, and the log."""
    async with Runtime(storage=url) as runtime:
        jobs = [
            NewJob(0, tenant_id=key, cost=cost, max_attempts=0)
            for key, cost in zip(itertools.cycle(tenants), costs(), strict=False)
        ]
        receipts = await worker_queue("q", POLICY).enqueue_many(jobs)
        with consumer(url, 1, kind), consumer(url, 2, kind):
            for seed in range(3, 3 + kills):
                with consumer(url, seed, kind):
                    await until_claimed(12)  # then it is killed
        claims = await event_log_read("worker.q.claims")
        assert await runtime.service(Store).run(lambda: compare([JobIndex()])) == []
    keys: dict[int, str] = {}
    for receipt, job in zip(receipts, jobs, strict=True):
        keys[receipt.job_id] = str(job.tenant_id)
        model.costs[receipt.job_id] = round(job.cost * MILLION)
        model.enter(Waiting(receipt.job_id, keys[receipt.job_id], 1, 0), 0)
    return keys, claims


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


def follow(model: CostModel | TreeModel, keys: dict[int, str], claims: list[Event]) -> None:
    """Expect each claim to be the model's next pick, and to leave the model's credit."""
    for event in claims:
        now, record = event.occurred_at_ms, event.payload
        if event.kind == "job_claimed":
            job, told = model.pick(now), record["scheduling"]
            assert job is not None and job.id == record["job_event_id"]
            assert told["charged_millionths"] == model.charged[job.id]
            for key, credit in credits_of(told, job.key):
                if model.has_ready(key):
                    assert credit == model.credit[key]
        elif event.kind == "job_acked":
            id = record["job_event_id"]
            real: Any = record.get("charged_millionths")
            model.end(id, keys[id], now, real)
        elif event.kind == "jobs_woken":  # a claim has expired: what it was charged stays
            for id in record["job_event_ids"]:
                model.wake(Waiting(id, keys[id], 1, 0), now)


def credits_of(told: dict[str, Any], key: str) -> list[tuple[str, int]]:
    """Return the credit that a claim left to its key, or to every node on its path."""
    if "path" not in told:
        return [(key, told["credit_millionths"])]
    nodes = [node for node, _ in lineage(key, "/")]
    return [(node, level[1]) for node, level in zip(nodes, told["path"], strict=True)]
