"""The functions of a PostgreSQL schema that carry out a queue's usual operations, each at once."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg
import pytest

from harn import Job, NewJob, Runtime, SchedulerPolicy, StorageError, drain, worker_queue
from harn.storage import Store
from harn.storage.engines.postgres.libpq_pipeline import Pipeline
from harn.storage.engines.postgres.postgres_driver import PostgresDriver
from harn.storage.log.rebuild import compare
from harn.storage.queries import load_schema
from harn.storage.queue import JobIndex
from harn.testing import FakeClock
from harn.workers import WorkerQueue
from harn.workers.records import Priority
from tests.storage.proxy import Cut, CuttingProxy

FAIR = SchedulerPolicy(strategy="drr")
RANKS: tuple[Priority, ...] = ("low", "normal", "high")
ENTER = ["SELECT newest, entered_at FROM work_enter_2"]
ENTER_ONE = ["SELECT newest, entered_at FROM work_enter_one_3"]
DIGESTS = {1: "818fcac46ec29247", 2: "54884c177aa019fe", 3: "de0228f8d1e31bd5"}
"""What each version's functions are. A change of them, or of a fragment they use, is a version."""


class Trips:
    """The statements that were sent, by round trip; hints alone do not count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[list[str]] = []
        run = Pipeline.run

        def counted(pipeline: Any, statements: Any, *more: Any) -> Any:
            sent = [text.split("(")[0] for text, _ in statements]
            # A new session, and behind a pooler each transaction, begins with its limits.
            if sent := [text for text in sent if text != "SELECT set_config"]:
                self.sent.append(sent)
            return run(pipeline, statements, *more)

        monkeypatch.setattr(Pipeline, "run", counted)


def has_functions(runtime: Runtime) -> bool:
    driver = runtime.service(Store).driver
    assert isinstance(driver, PostgresDriver)
    return driver._server.has_functions


async def work_all_off(queue: WorkerQueue, tenants: int = 3) -> None:
    """Enqueue some jobs and drain them; the index must be what a rebuild makes of the log."""
    before = (await queue.summary()).acked
    await queue.enqueue(0, tenant_id="t0")
    await queue.enqueue_many(NewJob(n, tenant_id=f"t{n % tenants}") for n in range(20))

    async def handler(job: Job) -> int:
        return int(job.payload)

    await drain(queue.name, handler, concurrency=4, policy=FAIR)

    assert (await queue.summary()).acked == before + 21
    assert await queue.store.run(lambda: compare([JobIndex()])) == []


async def test_an_enqueue_is_one_statement_and_a_claim_with_acks_is_two(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=postgres_url):
        queue = worker_queue("q", FAIR)
        await queue.enqueue_many(NewJob(n, tenant_id=f"t{n % 3}") for n in range(9))
        claims = await queue.claim_many("me", 4)  # the first one notes its policy
        trips = Trips(monkeypatch)

        await queue.enqueue(1, tenant_id="t1")
        await queue.enqueue_many(NewJob(n, tenant_id=f"t{n % 3}") for n in range(100))
        assert trips.sent == [ENTER_ONE, ENTER]
        trips.sent.clear()

        acks = [queue.operations.settle(claim.acking(None)) for claim in claims]
        claimed = queue.operations.claim(lambda: queue.claiming("me", 4, 60_000))
        await asyncio.gather(*acks, claimed)

    assert len(claimed.result().jobs) == 4
    assert trips.sent[:2] == [
        ["BEGIN", "SELECT * FROM work_look_3"],
        ["SELECT work_apply_3", "COMMIT"],
    ]


async def test_a_queue_with_other_keys_is_entered_at_once_from_its_second_enqueue_on(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=postgres_url):
        queue = worker_queue("q", SchedulerPolicy(strategy="drr", fairness_key="trigger-id"))
        await queue.enqueue(0, trigger_id="a")
        assert await queue.claim_next("me")
        queue.operations._dimension = "tenant"  # what a process believes that has just begun
        trips = Trips(monkeypatch)

        for n in range(3):
            await queue.enqueue(n, trigger_id="b")

        refused, *steps, second, third = trips.sent
        assert refused == second == third == ENTER_ONE and len(steps) == 2
        assert (await queue.summary()).ready == 3
        assert await queue.store.run(lambda: compare([JobIndex()])) == []


@pytest.mark.parametrize(
    "job",
    [
        NewJob("bare"),
        NewJob("all", "tr", "high", "acme", "b@v1", {"x": "y"}, max_attempts=2, cost=2.5),
        NewJob("function", priority="low", function="f", cost=0.25),
    ],
    ids=lambda job: job.payload,
)
async def test_a_job_enters_alone_as_it_does_with_others(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, job: NewJob
) -> None:
    async with Runtime(storage=postgres_url) as runtime:
        alone, together = worker_queue("alone", FAIR), worker_queue("together", FAIR)
        for queue in (alone, together):
            await queue.enqueue("first")
        trips = Trips(monkeypatch)

        await alone.enqueue_many([job])
        await together.enqueue_many([job, job])

        assert trips.sent == [ENTER_ONE, ENTER]
        assert await runtime.service(Store).run(lambda: compare([JobIndex()])) == []
    dsn, schema = postgres_url.split("?")[0], schema_of(postgres_url)
    rows = "SELECT to_jsonb(j) - '{queue_id,id,enqueued_at}'::text[]"
    async with await psycopg.AsyncConnection.connect(dsn) as db:
        found = await db.execute(f'{rows} FROM "{schema}".jobs AS j WHERE id > 1')
        [one, first, second] = await found.fetchall()
    assert one == first == second


@pytest.mark.parametrize("cut", ["before commit", "after commit"])
@pytest.mark.parametrize("many", [1, 3])
async def test_an_enqueue_whose_answer_is_lost_lands_once_and_tells_its_ids(
    postgres_database: str, cut: Cut, many: int
) -> None:
    proxy = CuttingProxy(postgres_database)
    url = f"{proxy.url}?schema=t_{uuid.uuid4().hex[:12]}"

    async with Runtime(storage=url):
        queue = worker_queue("q")
        await queue.enqueue("before")
        await queue.enqueue("before")
        proxy.arm(cut, at=b"cut here")
        receipts = await queue.enqueue_many(NewJob(f"cut here {n}") for n in range(many))
        last = await queue.enqueue("after")
        claims = await queue.claim_many("me", 10)
        differences = await queue.store.run(lambda: compare([JobIndex()]))
    proxy.close()

    assert proxy.cuts == 1
    assert [receipt.job_id for receipt in receipts] == [3 + n for n in range(many)]
    assert last.job_id == 3 + many
    assert [claim.job.payload for claim in claims] == [
        *("before", "before"),
        *(f"cut here {n}" for n in range(many)),
        "after",
    ]
    assert differences == []


@pytest.mark.parametrize("needs", [None, frozenset({"tr"})], ids=["all", "by trigger"])
@pytest.mark.parametrize(("tenants", "cap"), [(1, 0), (2, 1)])
async def test_jobs_that_are_claimed_and_acked_one_by_one_leave_the_index_as_it_must_be(
    postgres_url: str, clock: FakeClock, tenants: int, cap: int, needs: frozenset[str] | None
) -> None:
    policy = SchedulerPolicy(strategy="drr", max_concurrent_per_key=cap)
    async with Runtime(storage=postgres_url, clock=clock):
        queue = worker_queue("q", policy)
        for n in range(12):
            await clock.advance(1)  # so that the oldest job of each priority has its own time
            await queue.enqueue(
                n, trigger_id="tr", tenant_id=f"t{n % tenants}", priority=RANKS[n % 3]
            )
        [claim] = await queue.claim_many("me", 1)
        if needs is not None:  # there is a job that the claimer cannot handle
            await queue.enqueue("other", trigger_id="other", tenant_id="t0", priority="low")
        for _ in range(11):
            ack = queue.operations.settle(claim.acking(None))
            claimed = queue.operations.claim(lambda: queue.claiming("me", 1, 60_000, needs))
            await asyncio.gather(ack, claimed)
            assert ack.result().settled == "done"
            assert await queue.store.run(lambda: compare([JobIndex()])) == []
            [job] = claimed.result().jobs
            opened = queue.open(job, "me", 60_000)
            assert opened is not None
            claim = opened


async def test_a_lone_ack_of_a_claim_that_is_lost_changes_nothing(postgres_url: str) -> None:
    async with Runtime(storage=postgres_url):
        queue = worker_queue("q", FAIR)
        await queue.enqueue(1, tenant_id="t")
        [claim] = await queue.claim_many("me", 1)
        lost = msgspec.structs.replace(claim.acking("late"), claim_id="another")
        assert (await queue.operations.settle(lost)).settled == "lost"
        summary = await queue.summary()
        assert (summary.in_flight, summary.acked) == (1, 0)
        assert (await queue.operations.settle(claim.acking("done"))).settled == "done"
        assert await queue.store.run(lambda: compare([JobIndex()])) == []


@pytest.mark.parametrize("cut", ["before commit", "after commit"])
async def test_a_claim_whose_answer_is_lost_lands_once(postgres_database: str, cut: Cut) -> None:
    proxy = CuttingProxy(postgres_database)
    url = f"{proxy.url}?schema=t_{uuid.uuid4().hex[:12]}"

    async with Runtime(storage=url):
        queue = worker_queue("q", FAIR)
        await queue.enqueue_many(NewJob(n) for n in range(6))
        [first] = await queue.claim_many("me", 1)
        proxy.arm(cut)
        ack = queue.operations.settle(first.acking("done"))
        claimed = queue.operations.claim(lambda: queue.claiming("me", 2, 60_000))
        await asyncio.gather(ack, claimed)
        summary = await queue.summary()
        differences = await queue.store.run(lambda: compare([JobIndex()]))
    proxy.close()

    assert proxy.cuts == 1
    assert ack.result().settled == "done"
    assert [job.id for job in claimed.result().jobs] == [2, 3]
    assert (summary.ready, summary.in_flight, summary.acked) == (3, 2, 1)
    assert differences == []


async def drop_functions(dsn: str, schema: str) -> None:
    """Make the schema as it was before there were functions."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        rows = await (
            await admin.execute(
                "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = %s::regnamespace"
                " AND proname LIKE 'work\\_%%'",
                [f'"{schema}"'],
            )
        ).fetchall()
        assert rows
        for (function,) in rows:
            await admin.execute(f"DROP FUNCTION {function}")
        await admin.execute(f"DELETE FROM \"{schema}\".harn_schema WHERE concern = 'work'")


def schema_of(url: str) -> str:
    return url.partition("?schema=")[2]


async def test_an_older_store_gets_the_functions_when_several_open_it_at_once(
    postgres_url: str,
) -> None:
    async with Runtime(storage=postgres_url):
        await work_all_off(worker_queue("q", FAIR))
    await drop_functions(postgres_url.split("?")[0], schema_of(postgres_url))

    async def open_and_work(name: str) -> None:
        async with Runtime(storage=postgres_url) as runtime:
            await work_all_off(worker_queue(name, FAIR))
            assert has_functions(runtime)

    await asyncio.gather(*(open_and_work(f"q{n}") for n in range(4)))


@asynccontextmanager
async def role_of(url: str) -> AsyncIterator[tuple[str, Any]]:
    """A role that may do anything to the rows of a schema and nothing else; with its owner."""
    role, schema = f"r_{uuid.uuid4().hex[:8]}", schema_of(url)
    async with await psycopg.AsyncConnection.connect(url.split("?")[0], autocommit=True) as admin:
        await admin.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB")
        await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        rights = "SELECT, INSERT, UPDATE, DELETE"
        await admin.execute(f"GRANT {rights} ON ALL TABLES IN SCHEMA {schema} TO {role}")
        try:
            yield url.replace("postgres@", f"{role}@"), admin
        finally:
            await admin.execute(f"DROP OWNED BY {role}")
            await admin.execute(f"DROP ROLE {role}")


async def test_a_role_that_may_not_upgrade_a_store_is_told_so(postgres_url: str) -> None:
    async with Runtime(storage=postgres_url):
        await worker_queue("q").enqueue(1)
    await drop_functions(postgres_url.split("?")[0], schema_of(postgres_url))

    async with role_of(postgres_url) as (url, _):
        async with Runtime(storage=url):
            with pytest.raises(StorageError, match=r"upgraded.*may not.*role that owns the schema"):
                await worker_queue("q").enqueue(2)


@pytest.mark.parametrize("may_call", [True, False])
async def test_a_role_works_whether_it_may_call_the_functions_or_not(
    postgres_url: str, may_call: bool
) -> None:
    async with Runtime(storage=postgres_url):
        await worker_queue("q").enqueue(1)

    async with role_of(postgres_url) as (url, admin):
        if not may_call:
            schema = schema_of(postgres_url)
            await admin.execute(f"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC")
        async with Runtime(storage=url) as runtime:
            await work_all_off(worker_queue("other", FAIR))
            assert has_functions(runtime) is may_call


def test_a_change_of_the_functions_is_a_new_version() -> None:
    steps = [step for step in load_schema("postgres") if step.concern == "work"]

    digests = {
        step.version: hashlib.sha256(step.script.encode()).hexdigest()[:16] for step in steps
    }

    assert digests == DIGESTS
