"""The first half of `harn demo`: one pool, a noisy tenant and a quiet one.

The pool runs their tasks first in the order of submission, then in turns.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harn.cli.progress import bar, live_line
from harn.cli.tables import table
from harn.records import Record

NOISY, QUIET = ("noisy", 500), ("quiet", 10)
SLOTS = 8
WORK = "10ms"


@dataclass(slots=True)
class Tenant:
    """What happened to one tenant's tasks; times are seconds since the first submit."""

    name: str
    tasks: int
    started: list[float] = field(default_factory=list)
    finished: int = 0

    def report(self) -> dict[str, Any]:
        """Return the waits in whole milliseconds."""
        waits = [round(each * 1000) for each in self.started]
        return {
            "tenant": self.name,
            "tasks": self.tasks,
            "finished": self.finished,
            "first_wait_ms": waits[0],
            "median_wait_ms": round(statistics.median(waits)),
            "last_wait_ms": waits[-1],
        }


@dataclass(frozen=True, slots=True)
class Act(Record):
    """How the pool's queue was ordered, and how long each tenant waited."""

    queue: str
    tenants: list[dict[str, Any]]


async def play() -> list[Act]:
    """Run the same tasks in a pool in the order of submission, and in one that takes turns."""
    from harn import fair_round_robin, fifo

    return [await _act("fifo()", fifo()), await _act(FAIR, fair_round_robin("tenant_id"))]


FAIR = 'fair_round_robin("tenant_id")'


async def _act(title: str, queue: Any) -> Act:
    from harn import current_runtime, pool_create, pool_wait, scope, sleep

    clock = current_runtime().clock
    tenants = [Tenant(*NOISY), Tenant(*QUIET)]
    began = clock.monotonic()

    async def work(tenant: Tenant) -> None:
        tenant.started.append(clock.monotonic() - began)
        await sleep(WORK)
        tenant.finished += 1

    async with (
        await pool_create(name=title, max_concurrent=SLOTS, queue=queue) as pool,
        scope() as nursery,
    ):
        showing = nursery.spawn(_show, title.partition("(")[0], tenants)
        tasks = [
            await pool.submit(partial(work, tenant), tenant_id=tenant.name)
            for tenant in tenants
            for _ in range(tenant.tasks)
        ]
        await pool_wait(tasks)
        showing.cancel()
    live_line.end()
    return Act(title, [tenant.report() for tenant in tenants])


async def _show(title: str, tenants: list[Tenant]) -> None:
    """Follow the tenants on a terminal, until it is cancelled."""
    from harn import sleep

    while True:
        bars = (f"{each.name} {bar(each.finished, each.tasks, 6)}" for each in tenants)
        live_line.show(f"{title}: {'  '.join(bars)}")
        await sleep("100ms")


def render(acts: list[Act]) -> str:
    """Return the waits of both tenants as a table, and a sentence that compares them."""
    rows = [
        [
            act.queue.partition("(")[0],
            each["tenant"],
            each["tasks"],
            each["first_wait_ms"],
            each["median_wait_ms"],
            each["last_wait_ms"],
        ]
        for act in acts
        for each in act.tenants
    ]
    headings = ["queue", "tenant", "tasks", "first wait ms", "median", "last"]
    quiet = [each for act in acts for each in act.tenants if each["tenant"] == QUIET[0]]
    return "\n".join(
        [
            f"One pool of {SLOTS} slots. A noisy tenant submits {NOISY[1]} tasks, "
            f"then a quiet one submits {QUIET[1]}.",
            "",
            table(headings, rows),
            "",
            f"The quiet tenant's last task waited {quiet[0]['last_wait_ms']} ms in the order of "
            f"submission and {quiet[1]['last_wait_ms']} ms in turns.",
        ]
    )
