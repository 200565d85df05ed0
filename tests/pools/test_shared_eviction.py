"""A full ring buffer of a shared pool drops from its longest partition, whatever its order."""

from __future__ import annotations

from typing import Any

import pytest

from harn import Pool, fair_round_robin, pool_create, pool_wait, ring_buffer
from harn.storage.queue.pool_eviction import Lines
from tests.pools.shared_processes import Process, gates, held, open_held, ran, until

BURST = [("a", 0), ("a", 3), ("b", 1), ("a", 1), ("c", 2), ("a", 2), ("b", 3), ("a", 0), ("d", 0)]
"""Submits by their keys and priorities, while the one slot is taken."""


async def fill(name: str, *pools: Pool) -> list[str]:
    """Submit the burst to *pools* in turn; return how each task ended, once all have."""
    del ran[:]
    tasks = [await pools[0].submit(held(f"{name} runs"))]
    await until(lambda: ran == [f"{name} runs"])
    for n, (key, priority) in enumerate(BURST):
        pool = pools[n % len(pools)]
        tasks.append(await pool.submit(open_held(f"{n}"), key=key, priority=priority))
    gates[f"{name} runs"].set()
    await pool_wait(tasks)
    return [f"{task.status}" for task in tasks]


@pytest.mark.parametrize("queue", ["fifo", "lifo", "priority", fair_round_robin("tenant_id")])
async def test_13_a_burst_pushes_out_its_own_tasks_as_in_a_session_pool(
    processes: list[Process], queue: Any
) -> None:
    options = {"queue": queue, "backpressure": ring_buffer(4, evict="longest")}
    shared = [await each.open(**options) for each in processes]
    session: Pool = await processes[0].inside(lambda: pool_create(name="session", **options))
    ended = await processes[0].inside(lambda: fill("session", session))
    order = ran[1:]

    assert await processes[0].inside(lambda: fill("shared", *shared)) == ended

    assert ran[1:] == order
    assert len(order) == 4
    assert ended.count("rejected") == len(BURST) - 4


def test_a_new_task_does_not_count_in_the_line_that_it_joins() -> None:
    lines = Lines([(1, "a"), (2, "b"), (3, "b"), (4, "a"), (5, "c"), (6, "a")])

    found = [lines.victim(newcomer) for newcomer in (4, 5, 6, 7)]

    assert found == [2, 1, 4, 3]
