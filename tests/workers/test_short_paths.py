"""Operations on one job at a time take few statements."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harn import Runtime, worker_queue
from harn.storage import Ask, Rows, Store
from harn.storage.engines.sqlite_session import Session
from harn.storage.log.rebuild import compare
from harn.storage.queue import JobIndex


async def test_a_lone_ack_reads_and_writes_its_job_in_one_statement(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute = Session.execute

    def noted(session: Session, statement: Ask) -> Rows:
        asked.append(statement.name)
        return execute(session, statement)

    path = tmp_path_factory.mktemp("store") / "events.sqlite"
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        queue = worker_queue("q")
        await queue.enqueue(1, tenant_id="a")
        claim = await queue.claim_next("me")
        assert claim is not None
        monkeypatch.setattr(Session, "execute", noted)

        assert await claim.ack("done")

        assert asked.count("ack_one") == 1
        assert not {"jobs_by_id", "ack_jobs"} & {*asked}
        assert not await claim.ack("done")  # what was settled is read step by step
        assert "jobs_by_id" in asked
        assert await runtime.service(Store).run(lambda: compare([JobIndex()])) == []


async def test_an_enqueue_begins_at_once_while_callers_come_one_at_a_time(tmp_path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{tmp_path}/q.sqlite"):
        queue = worker_queue("q")
        alone = asyncio.ensure_future(queue.enqueue("alone"))
        await asyncio.sleep(0)
        assert queue.operations._batcher.is_busy
        await alone

        await asyncio.gather(*(queue.enqueue(n) for n in range(3)))  # one begins, two meet
        later = [asyncio.ensure_future(queue.enqueue(n)) for n in range(3)]
        await asyncio.sleep(0)
        assert not queue.operations._batcher.is_busy  # others may come in this turn, too
        await asyncio.gather(*later)


async def test_an_enqueue_into_memory_lets_other_tasks_run() -> None:
    async with Runtime():
        queue = worker_queue("q")
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        for n in range(10):
            await queue.enqueue(n)
        ticking.cancel()
        assert ticks >= 10
