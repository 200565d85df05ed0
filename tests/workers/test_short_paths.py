"""Operations on one job at a time take few statements."""

from __future__ import annotations

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
