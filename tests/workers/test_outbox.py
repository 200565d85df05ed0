"""Jobs that a PostgreSQL transaction of the caller's own puts into a queue."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from harn import (
    DeadlineExceeded,
    InvalidOption,
    Job,
    JobError,
    Runtime,
    SchedulerPolicy,
    current_runtime,
    drain,
    durable,
    worker_queue,
    worker_queues,
)
from harn.orchestrator import known_job, known_queue
from harn.storage import Store, ask
from harn.storage.contract import APPEND
from harn.storage.log.rebuild import compare, rebuild
from harn.storage.queue import JobIndex
from harn.storage.queue.queue_row import open_queue
from harn.testing import FakeClock, fresh_runtime
from harn.workers import WorkerQueue
from tests.postgres import own_schema

Connection = psycopg.AsyncConnection[Any]


@dataclass
class Caller:
    """An application that has connections of its own to the store's database."""

    url: str
    opened: list[Connection] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.url.partition("?")[0]

    @property
    def schema(self) -> str:
        return self.url.rpartition("=")[2]

    async def connect(self, *, autocommit: bool = False) -> Connection:
        connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=autocommit)
        self.opened.append(connection)
        return connection

    async def enqueue(self, connection: Connection, queue: str, args: str) -> str:
        """Call the SQL function, the way any language does."""
        cursor = await connection.execute(f"""SELECT "{self.schema}".enqueue('{queue}', {args})""")
        row = await cursor.fetchone()
        assert row is not None
        return str(row[0])


@pytest.fixture
async def caller(postgres_url: str) -> AsyncIterator[Caller]:
    caller = Caller(postgres_url)
    async with Runtime(storage=postgres_url) as runtime:
        await runtime.service(Store).run(lambda: compare([JobIndex()]))  # makes the tables
        yield caller
        for connection in caller.opened:
            await connection.close()
        assert await runtime.service(Store).run(lambda: compare([JobIndex()])) == []


async def payloads(queue: WorkerQueue, most: int = 100) -> list[Any]:
    """Claim and ack everything, in the order in which it comes."""
    found = []
    while claims := await queue.claim_many("worker", most):
        found += [claim.job.payload for claim in claims]
        await asyncio.gather(*(claim.ack() for claim in claims))
    return found


# -- commit and rollback --------------------------------------------------------------------------


async def test_a_job_is_there_with_the_commit_and_not_before(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()

    ticket = await caller.enqueue(connection, "reviews", """'{"pr": 1984}'""")

    assert await queue.job(ticket) is None
    assert await queue.claim_next("worker") is None
    await connection.commit()
    claim = await queue.claim_next("worker")
    assert claim is not None and claim.job.payload == {"pr": 1984}
    assert (state := await queue.job(ticket)) is not None and state.id == claim.job.id


async def test_an_operator_finds_a_job_by_its_ticket(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect(autocommit=True)
    ticket = await caller.enqueue(connection, "reviews", "'1'")
    claim = await queue.claim_next("worker")
    assert claim is not None

    found = await known_job(queue, ticket)

    assert found.id == claim.job.id


async def test_each_look_shows_what_was_committed_although_nothing_consumes_it(
    caller: Caller,
) -> None:
    looks: dict[str, Callable[[WorkerQueue], Awaitable[Any]]] = {
        "names": lambda queue: _names(),
        "summary": lambda queue: queue.summary(),
        "jobs": lambda queue: queue.jobs(),
        "ready": lambda queue: queue.jobs(status="ready", tenant_id="acme"),
        "purge": lambda queue: queue.purge(),
        "operator": lambda queue: known_queue(current_runtime(), queue.name),
    }
    connection, seen = await caller.connect(autocommit=True), dict[str, Any]()

    for name, look in looks.items():
        await caller.enqueue(connection, name, "'1', tenant_id => 'acme'")
        seen[name] = await look(worker_queue(name))

    assert "names" in seen["names"]
    assert seen["summary"].ready == 1
    assert [job.payload for job in (*seen["jobs"], *seen["ready"])] == [1, 1]
    assert seen["purge"] == 1
    assert [job.payload for job in await seen["operator"].jobs()] == [1]


async def _names() -> list[str]:
    return [each.queue for each in await worker_queues()]


async def test_a_look_at_a_known_queue_shows_more_than_one_operation_moves(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect(autocommit=True)
    await queue.enqueue("first")
    await connection.execute(
        f"""SELECT "{caller.schema}".enqueue('reviews', '1') FROM generate_series(1, 2100)"""
    )

    summary = await queue.summary()

    assert summary.ready == 2101


async def test_a_look_ends_although_commits_never_stop(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect(autocommit=True)
    store, left = queue.store, [50]
    run = store.run

    async def committing(recipe: Any, **options: Any) -> Any:
        answer = await run(recipe, **options)
        if left[0]:  # a commit comes after each operation
            left[0] -= 1
            await caller.enqueue(connection, "reviews", "'2'")
        return answer

    await caller.enqueue(connection, "reviews", "'1'")
    monkeypatch.setattr(store, "run", committing)
    found = await queue.jobs()
    monkeypatch.undo()

    assert [job.payload for job in found][:1] == [1]
    assert left[0] > 40


async def test_a_rolled_back_job_never_was(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()

    receipt = await queue.enqueue("never", connection=connection)
    await connection.rollback()

    assert await queue.job(str(receipt.ticket)) is None
    assert await payloads(queue) == []
    assert await receipt.cancel() is False
    with pytest.raises(JobError, match="rolled"):
        await receipt.state()


async def test_a_savepoint_takes_only_its_own_jobs_back(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()

    async with connection.transaction():
        with pytest.raises(RuntimeError):
            async with connection.transaction():
                await queue.enqueue("inner", connection=connection)
                raise RuntimeError
        await queue.enqueue("outer", connection=connection)

    assert await payloads(queue) == ["outer"]


async def test_every_keyword_arrives(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect(autocommit=True)
    # Whole milliseconds: Python and PostgreSQL round half of one differently.
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    by_sql = await caller.enqueue(
        connection,
        "reviews",
        """'{"id": "ev_1"}', trigger_id => 't', priority => 'high', tenant_id => 'acme',
        binding_key => 'b', headers => '{"h": 1}', dedupe_key => 'sql', max_attempts => 7,
        cost => 2.5, not_before => """
        f"'{later.isoformat()}'",
    )
    by_python = await queue.enqueue(
        {"id": "ev_1"},
        trigger_id="t",
        priority="high",
        tenant_id="acme",
        binding_key="b",
        headers={"h": 1},
        dedupe_key="python",
        max_attempts=7,
        cost=2.5,
        not_before=later,
        connection=connection,
    )
    plainly = await queue.enqueue(
        {"id": "ev_1"},
        trigger_id="t",
        priority="high",
        tenant_id="acme",
        binding_key="b",
        headers={"h": 1},
        dedupe_key="plain",
        max_attempts=7,
        cost=2.5,
        not_before=later,
    )

    states = [await queue.job(key) for key in (by_sql, str(by_python.ticket), plainly.job_id)]
    seen = [state.as_dict() for state in states if state is not None]
    for each in seen:
        for own in ("id", "dedupe_key", "enqueued_at_ms"):
            del each[own]
    assert seen[0] == seen[1] == seen[2]
    assert (seen[0]["status"], seen[0]["cost"], seen[0]["headers"]) == ("scheduled", 2.5, {"h": 1})


# -- order ----------------------------------------------------------------------------------------


async def test_jobs_of_one_transaction_keep_the_order_of_their_calls(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()

    for number in range(25):
        if number % 2:
            await queue.enqueue(number, connection=connection)
        else:
            await caller.enqueue(connection, "reviews", f"'{number}'")
    await connection.commit()

    assert await payloads(queue) == [*range(25)]


async def test_transactions_enter_in_the_order_of_their_commits(caller: Caller) -> None:
    queue = worker_queue("reviews")
    connections = [await caller.connect() for _ in range(6)]
    for turn in range(3):  # begun one after the other, their calls interleaved
        for number, connection in enumerate(connections):
            await queue.enqueue([number, turn], connection=connection)

    order = [3, 0, 5, 1, 4, 2]
    for number in order:
        await connections[number].commit()

    assert await payloads(queue) == [[number, turn] for number in order for turn in range(3)]


async def test_what_was_committed_first_comes_before_a_plain_enqueue(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()
    await queue.enqueue("first")
    await queue.enqueue("second", connection=connection)
    await connection.commit()

    await queue.enqueue("third")

    assert [job.payload for job in await queue.jobs()] == ["first", "second", "third"]


async def test_more_than_one_operation_can_move_arrive_in_order(caller: Caller) -> None:
    connection = await caller.connect()
    call = f"""SELECT "{caller.schema}".enqueue('reviews', to_jsonb(n))"""
    await connection.execute(f"{call} FROM generate_series(1, 2500) AS n")
    await connection.commit()

    assert await payloads(worker_queue("reviews"), 1000) == [*range(1, 2501)]


# -- nothing waits --------------------------------------------------------------------------------


async def test_open_transactions_hold_up_no_claim_and_no_other_enqueue(caller: Caller) -> None:
    queue = worker_queue("reviews")
    held = [await caller.connect() for _ in range(20)]
    for number, connection in enumerate(held):
        await queue.enqueue(number, dedupe_key="same", connection=connection)

    async with asyncio.timeout(30):
        await queue.enqueue_many(["a", "b"])
        quick = await caller.connect(autocommit=True)
        await queue.enqueue("c", connection=quick)
        seen = await payloads(queue)
        for connection in held:
            await connection.commit()

    assert seen == ["a", "b", "c"]
    assert await payloads(queue) == [0]


async def test_operations_ask_the_server_no_more_often_for_the_outbox(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harn.storage.engines.postgres.libpq_pipeline import Pipeline

    queue, asked = worker_queue("reviews"), list[str]()
    run = Pipeline.run

    def noted(self: Any, statements: Any, *more: Any) -> Any:
        asked.append(" ".join(str(text) for text, _ in statements))
        return run(self, statements, *more)

    await queue.enqueue("warm")
    monkeypatch.setattr(Pipeline, "run", noted)
    await queue.enqueue("one")

    # Others may ask as well: the lease's renewal, or the retention of jobs.
    assert len([each for each in asked if "work_enter" in each]) == 1
    assert not [each for each in asked if "outbox" in each]


# -- dedupe ---------------------------------------------------------------------------------------


async def test_the_ticket_of_a_duplicate_leads_to_the_job_that_is_there(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect(autocommit=True)
    plain = await queue.enqueue("plain", dedupe_key="key")

    first = await queue.enqueue("again", dedupe_key="key", connection=connection)
    second = await caller.enqueue(connection, "reviews", "'1', dedupe_key => 'key'")

    for ticket in (str(first.ticket), second):
        state = await queue.job(ticket)
        assert state is not None and state.id == plain.job_id
    assert await payloads(queue) == ["plain"]


# -- bad values -----------------------------------------------------------------------------------

BAD = [
    ("''", "'1'", "queue='' is not accepted: 1 to 128"),
    ("NULL", "'1'", "queue=NULL is not accepted"),
    ("' a'", "'1'", "white space at its ends"),
    ("'a.claims'", "'1'", "does not end in .claims"),
    ("E'a\\u200bb'", "'1'", "printable"),
    ("repeat('x', 129)", "'1'", "1 to 128 printable characters"),
    ("'q'", "'1', priority => 'urgent'", "priority='urgent' is not accepted: high, normal or low"),
    ("'q'", "'1', priority => NULL", "priority=NULL"),
    ("'q'", "'1', tenant_id => ''", "tenant_id='' is not accepted: 1 to 256 printable"),
    ("'q'", "'1', tenant_id => E'a\\nb'", "tenant_id="),
    ("'q'", "'1', binding_key => repeat('x', 257)", "binding_key="),
    ("'q'", "'1', trigger_id => E'\\u00a0'", "trigger_id="),
    ("'q'", "'1', dedupe_key => repeat('x', 513)", "dedupe_key=.*1 to 512 characters"),
    ("'q'", "'1', dedupe_key => E'a\\u202eb'", "none of them a control"),
    ("'q'", "'1', max_attempts => -1", "max_attempts='-1' is not accepted: a whole number"),
    ("'q'", "'1', cost => 'NaN'", "cost='NaN' is not accepted: a finite number, 0 or more"),
    ("'q'", "'1', cost => -0.5", "cost='-0.5'"),
    ("'q'", "'1', headers => '[1]'", "headers='\\[1\\]' is not accepted: a JSON object"),
    ("'q'", "'1', not_before => 'infinity'", "not_before='infinity'"),
    ("'q'", "to_jsonb(repeat('x', 10485760))", "payload='10485762 bytes' is not accepted"),
    ("'q'", "(repeat('[', 201) || repeat(']', 201))::jsonb", "JSON of at most 200 levels"),
    ("'q'", "'1', headers => jsonb_build_object('h', repeat('x', 65536))", "65536 bytes"),
    ("'q'", "'nonsense'", "invalid input syntax for type json"),
    ("'q'", "('[1' || repeat('0', 400) || '.5]')::jsonb", "payload=.*numbers with a fraction"),
    ("'q'", "('-1797693134862315808' || repeat('0', 290) || '.0')::jsonb", "below 1.8e308"),
    ("'q'", "'1', headers => ('{\"n\": 9' || repeat('0', 309) || '.5}')::jsonb", "headers="),
    ("'pool_tenant_' || repeat('0', 32)", "'1'", "no pool's id; submit to the pool"),
    ("'q'", "'1', prioritty => 'high'", "does not exist"),
]


async def test_bad_values_are_refused_at_the_call(caller: Caller) -> None:
    connection = await caller.connect(autocommit=True)

    for queue, args, told in BAD:
        with pytest.raises(psycopg.Error, match=told):
            await connection.execute(f'SELECT "{caller.schema}".enqueue({queue}, {args})')

    assert await payloads(worker_queue("q")) == []


async def test_values_at_their_limits_are_taken(caller: Caller) -> None:
    connection = await caller.connect(autocommit=True)
    deep = "(repeat('[', 200) || repeat(']', 200))::jsonb"

    await caller.enqueue(connection, "q", f"{deep}, tenant_id => repeat('ü', 256), cost => 0")
    await caller.enqueue(connection, "q", "NULL, max_attempts => 0, headers => NULL")
    await caller.enqueue(connection, "crème brûlée", "to_jsonb(repeat('x', 10485000))")
    await caller.enqueue(connection, "q", "('1' || repeat('0', 308) || '.5')::jsonb")
    await caller.enqueue(connection, "q", "('9' || repeat('0', 400))::jsonb")
    await caller.enqueue(connection, "q", "to_jsonb(repeat('9', 400) || '.5')")

    _, _, *numbers = await payloads(worker_queue("q"))
    assert numbers == [1e308, 9 * 10**400, "9" * 400 + ".5"]
    assert len((await payloads(worker_queue("crème brûlée")))[0]) == 10485000


async def test_python_refuses_bad_values_before_the_connection_is_used(caller: Caller) -> None:
    connection = await caller.connect()

    with pytest.raises(InvalidOption, match="priority"):
        wrong: Any = "urgent"
        await worker_queue("q").enqueue(1, priority=wrong, connection=connection)

    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_a_payload_of_python_arrives_as_it_was(caller: Caller) -> None:
    queue, connection = worker_queue("q"), await caller.connect(autocommit=True)
    odd = {"z": 1e22, "a": "\0", "big": 10**30, "é": [None, True, 1.0]}

    await queue.enqueue(odd, connection=connection)

    assert await payloads(queue) == [odd]


async def test_a_ticket_is_text_whatever_the_encoding_of_the_connection(caller: Caller) -> None:
    queue, connection = worker_queue("q"), await caller.connect(autocommit=True)
    await connection.execute("SET client_encoding = 'SQL_ASCII'")

    receipt = await queue.enqueue("é", connection=connection)

    state = await queue.job(str(receipt.ticket))
    assert state is not None and state.payload == "é"


# -- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
async def test_other_stores_refuse_a_connection(kind: str, tmp_path: Any) -> None:
    rest = {"memory": "", "sqlite": f"/{tmp_path}/a.sqlite", "file": f"/{tmp_path}/log"}[kind]
    async with Runtime(storage=f"{kind}://{rest}"):
        with pytest.raises(InvalidOption, match="needs a PostgreSQL store"):
            await worker_queue("q").enqueue(1, connection=object())


async def test_what_is_no_connection_is_refused(caller: Caller) -> None:
    with psycopg.connect(caller.dsn) as not_async:
        for wrong in (object(), "postgresql://", not_async):
            with pytest.raises(InvalidOption, match="a psycopg AsyncConnection"):
                await worker_queue("q").enqueue(1, connection=wrong)


async def test_a_connection_to_another_database_is_refused(
    caller: Caller, postgres_server: str
) -> None:
    connection = await psycopg.AsyncConnection.connect(postgres_server)
    caller.opened.append(connection)

    with pytest.raises(InvalidOption, match="the database of the runtime's store"):
        await worker_queue("q").enqueue(1, connection=connection)


async def test_a_store_of_the_same_name_in_another_database_is_refused(
    caller: Caller, postgres_server: str
) -> None:
    ours, name = worker_queue("q"), f"other_{caller.schema}"
    base = postgres_server.rsplit("/", 1)[0]
    async with await psycopg.AsyncConnection.connect(postgres_server, autocommit=True) as admin:
        await admin.execute(f'CREATE DATABASE "{name}"')
        try:
            async with fresh_runtime(storage=f"{base}/{name}?schema={caller.schema}") as other:
                await other.service(Store).run(lambda: compare([JobIndex()]))
                connection = await psycopg.AsyncConnection.connect(f"{base}/{name}")
                caller.opened.append(connection)
                with pytest.raises(InvalidOption, match="another store"):
                    await ours.enqueue(1, connection=connection)
                await connection.close()
        finally:
            await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


async def test_two_schemas_of_one_database_keep_their_jobs_apart(
    caller: Caller, postgres_database: str
) -> None:
    connection, queue = await caller.connect(autocommit=True), worker_queue("q")
    with own_schema(postgres_database) as url:
        async with fresh_runtime(storage=url) as other:
            theirs = WorkerQueue(other, "q", None)
            await theirs.enqueue("theirs", connection=connection)
            ours = await queue.enqueue("ours", connection=connection)

            assert await theirs.job(str(ours.ticket)) is None
            assert await payloads(theirs) == ["theirs"]
    assert await payloads(queue) == ["ours"]


async def test_a_role_that_may_only_use_the_schema_can_enqueue(caller: Caller) -> None:
    connection = await caller.connect(autocommit=True)
    role = f"app_{caller.schema}"
    await connection.execute(f'CREATE ROLE "{role}"')
    await connection.execute(f'GRANT USAGE ON SCHEMA "{caller.schema}" TO "{role}"')
    try:
        await connection.execute(f'SET ROLE "{role}"')
        await caller.enqueue(connection, "q", "'1'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute(f'SELECT * FROM "{caller.schema}".outbox')
    finally:
        await connection.execute("RESET ROLE")
        await connection.execute(f'DROP OWNED BY "{role}"')
        await connection.execute(f'DROP ROLE "{role}"')

    assert await payloads(worker_queue("q")) == [1]


async def test_what_is_no_job_is_refused_whichever_function_puts_it_in(caller: Caller) -> None:
    connection = await caller.connect(autocommit=True)
    add = f'''SELECT "{caller.schema}".outbox_add(NULL, %s, %s, %s, 1::smallint, NULL, NULL, NULL,
        NULL, 5, NULL, NULL, NULL)'''

    for job in (
        ("q", "x", "{}"),
        ("q", "[1]", "{}"),
        ("q", None, "{}"),
        ("q", "{}", "x"),
        ("q", "{}", "null"),
        ("queues", "{}", "{}"),
    ):
        with pytest.raises(psycopg.Error, match=r"is not accepted|invalid input syntax"):
            await connection.execute(add, job)

    queue = worker_queue("q")
    await queue.enqueue("more")
    assert await payloads(queue) == ["more"]


# -- tickets --------------------------------------------------------------------------------------


async def test_a_receipt_with_a_ticket_waits_for_commit_and_outcome(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()
    receipt = await queue.enqueue(20, connection=connection)
    assert (receipt.job_id, receipt.as_dict()["ticket"]) == (None, receipt.ticket)
    with pytest.raises(DeadlineExceeded):
        await receipt.result(timeout="10ms")

    waiting = asyncio.create_task(receipt.result())
    await connection.commit()
    await drain("reviews", lambda job: job.payload + 1)

    assert await waiting == 21
    assert (await receipt.state()).outcome == 21


async def test_a_job_is_cancelled_by_its_ticket(caller: Caller) -> None:
    queue, connection = worker_queue("reviews"), await caller.connect()
    receipt = await queue.enqueue(1, connection=connection)
    await connection.commit()

    assert await receipt.cancel("enough") is True
    assert (await receipt.state()).status == "cancelled"
    assert await payloads(queue) == []


async def test_a_ticket_belongs_to_one_queue(caller: Caller) -> None:
    connection = await caller.connect(autocommit=True)
    ticket = await caller.enqueue(connection, "reviews", "'1'")

    assert await worker_queue("other").job(ticket) is None
    assert await worker_queue("reviews").job("ticket_nonsense") is None
    assert await worker_queue("reviews").job(ticket) is not None
    with pytest.raises(InvalidOption, match="job_id"):
        await worker_queue("reviews").job("no ticket")


async def test_a_ticket_goes_with_the_record_of_its_job(postgres_url: str) -> None:
    clock, caller = FakeClock(), Caller(postgres_url)
    async with fresh_runtime(storage=postgres_url, clock=clock) as runtime:
        queue, store = WorkerQueue(runtime, "reviews", None), runtime.service(Store)
        await queue.summary()
        connection = await caller.connect(autocommit=True)
        receipt = await queue.enqueue(1, connection=connection)
        again = await queue.enqueue(2, connection=connection)
        [claim] = await queue.claim_many("worker", 1)
        await claim.ack()
        await clock.advance(3 * 86_400)

        await runtime.event_log.trim("worker.reviews", keep=0)

        assert await queue.job(str(receipt.ticket)) is None
        assert await queue.job(str(again.ticket)) is not None
        assert await store.run(lambda: compare([JobIndex()])) == []
        await connection.close()


# -- idle consumers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reviews", "crème brûlée"])
async def test_an_idle_consumer_starts_the_job_when_it_is_committed(
    caller: Caller, name: str
) -> None:
    connection, started = await caller.connect(), asyncio.Event()

    def handler(job: Job) -> None:
        started.set()

    async def handle(job: Job) -> None:
        handler(job)

    working = asyncio.create_task(drain(name, handle, stop_when_empty=False))
    await worker_queue(name).enqueue("plain")
    await asyncio.wait_for(started.wait(), 30)
    started.clear()

    await worker_queue(name).enqueue("ours", connection=connection)
    await connection.commit()

    await asyncio.wait_for(started.wait(), 30)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_commit_is_told_on_the_channel_of_the_store(caller: Caller) -> None:
    listening, connection = await caller.connect(autocommit=True), await caller.connect()
    await listening.execute(f'LISTEN "harn_{caller.schema}"')

    await caller.enqueue(connection, "reviews", "'1'")
    await caller.enqueue(connection, "crème", "'1'")
    await connection.commit()

    heard = [each.payload async for each in listening.notifies(timeout=30, stop_after=2)]
    assert heard == ["worker.reviews", ""]


async def test_a_queue_that_is_new_is_found_by_a_drain(caller: Caller) -> None:
    connection = await caller.connect(autocommit=True)
    await caller.enqueue(connection, "never used", "'1'")

    report = await drain("never used", lambda job: job.payload)

    assert report.acked == 1


# -- crashes --------------------------------------------------------------------------------------

DYING = """
import os, psycopg, sys
dsn, schema, commits = sys.argv[1:]
connection = psycopg.connect(dsn)
call = f'SELECT "{schema}".enqueue(%s, %s)'
for number in range(3):
    [ticket] = connection.execute(call, ("q", str(number))).fetchone()
if commits == "yes":
    connection.commit()
print(ticket, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("commits", ["yes", "no"])
async def test_a_killed_process_enqueued_what_it_committed(caller: Caller, commits: str) -> None:
    dying = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DYING, caller.dsn, caller.schema, commits),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert dying.stdout is not None
    ticket = (await dying.stdout.readline()).decode().strip()

    os.kill(dying.pid, signal.SIGKILL)
    await dying.wait()

    is_there = await worker_queue("q").job(ticket) is not None
    assert is_there is (commits == "yes")
    assert await payloads(worker_queue("q")) == ([0, 1, 2] if commits == "yes" else [])


async def test_a_rebuilt_index_has_the_tickets(caller: Caller) -> None:
    policy = SchedulerPolicy(strategy="drr", max_concurrent_per_key=1)
    queue, connection = worker_queue("q", policy), await caller.connect()
    store = queue.runtime.service(Store)
    tickets = []
    for turn in range(4):
        for tenant in ("a", "b"):
            options: dict[str, Any] = {"tenant_id": tenant, "dedupe_key": f"{tenant}{turn // 2}"}
            receipt = await queue.enqueue(turn, connection=connection, **options)
            tickets.append(str(receipt.ticket))
        await connection.commit()
        held = await queue.claim_many("worker", 2)
        await queue.enqueue(turn, connection=connection)
        await connection.commit()
        for claim in held:
            await claim.ack()
    before = [await queue.job(ticket) for ticket in tickets]
    assert await store.run(lambda: compare([JobIndex()])) == []

    await store.run(lambda: rebuild([JobIndex()]))

    assert [await queue.job(ticket) for ticket in tickets] == before
    assert None not in before


@durable(name="tests.outbox:double")
async def double(number: int) -> int:
    return 2 * number


async def test_a_durable_function_is_submitted_in_the_transaction(caller: Caller) -> None:
    queue, connection = worker_queue("q"), await caller.connect()

    receipt = await queue.submit(double, 21, connection=connection)
    assert (await drain("q")).acked == 0
    await connection.commit()
    await drain("q")

    assert await receipt.result(timeout="30s") == 42


def test_what_was_seen_of_a_queue_before_it_was_made_does_not_count() -> None:
    row = (1, 0, "tenant", 0, None, 0, "", 0, None, "", 0, 0)
    opening = open_queue("q", create=True, ahead=[ask("queue_heads"), ask(APPEND)])
    next(opening)

    assert opening.send([[], [], [(1, 0)]]).name == "add_queue"  # type: ignore[list-item]
    assert opening.send([]).name == "open_queue"  # made by another process, with a job in it
    with pytest.raises(StopIteration) as opened:
        opening.send([row])

    assert opened.value.value.ahead == {APPEND: [(1, 0)]}


@pytest.mark.parametrize("hierarchy", [None, "/"])
async def test_a_cost_given_in_sql_is_what_its_key_is_charged(
    caller: Caller, hierarchy: Any
) -> None:
    policy = SchedulerPolicy(strategy="drr", charge="cost", quantum=5, hierarchy=hierarchy)
    connection = await caller.connect()
    for tenant, cost, jobs in (("dear", 5, 4), ("cheap", 1, 20)):
        for _ in range(jobs):
            args = f"'1', tenant_id => '{tenant}', cost => {cost}"
            await caller.enqueue(connection, "q", args)
    await connection.commit()

    claims = await worker_queue("q", policy).claim_many("w", 12)

    served = Counter(claim.job.tenant_id for claim in claims)
    assert served == {"dear": 2, "cheap": 10}
