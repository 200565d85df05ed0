"""What is PostgreSQL's own: order of commits, lost answers, restarts, roles, notifications."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import psycopg
import pytest

from harn import Event, Runtime, StorageBusy, StorageError, worker_queue
from harn.masking import mask
from harn.storage import Operation, Rows, Store, ask, draft
from harn.storage.engines.postgres import operation_runner
from harn.storage.engines.postgres.connecting import connect_options
from harn.storage.engines.postgres.libpq_pipeline import Pipeline
from harn.storage.engines.postgres.postgres_driver import PostgresDriver
from harn.storage.engines.store_thread import Handover
from harn.storage.log import append
from harn.storage.url import read_url
from tests.postgres import Server
from tests.storage.proxy import Cut, CuttingProxy, HoldingProxy


def driver_of(runtime: Runtime) -> PostgresDriver:
    driver = runtime.service(Store).driver
    assert isinstance(driver, PostgresDriver)
    return driver


@pytest.mark.parametrize("cut", ["before commit", "after commit"])
@pytest.mark.parametrize("repeat", range(3))
async def test_E5_an_answer_lost_around_commit_lands_once(
    postgres_database: str, cut: Cut, repeat: int
) -> None:
    proxy = CuttingProxy(postgres_database)
    url = f"{proxy.url}?schema=t_{uuid.uuid4().hex[:12]}"

    async with Runtime(storage=url) as runtime:
        log = runtime.event_log
        await log.emit("a", "k", "before")
        proxy.arm(cut)
        event = await log.emit("a", "k", "cut")
        await log.emit("a", "k", "after")
        found = await log.read("a")
    proxy.close()

    assert proxy.cuts == 1
    assert [each.payload for each in found] == ["before", "cut", "after"]
    assert event == found[1]


async def test_A7_an_operation_with_effects_of_its_own_lands_once_too(
    postgres_database: str,
) -> None:
    proxy = CuttingProxy(postgres_database)
    url = f"{proxy.url}?schema=t_{uuid.uuid4().hex[:12]}"
    tries: list[int] = []

    def move() -> Operation[int]:
        tries.append(1)
        [(position,)] = yield ask("move_cursor", topic="a", consumer="c", position=len(tries))
        yield from append([draft("a", "moved", position)])
        return int(position)

    async with Runtime(storage=url) as runtime:
        await runtime.event_log.emit("a", "k", "before")
        proxy.arm("after commit")
        position = await runtime.service(Store).run(move)
        events = await runtime.event_log.read("a")
    proxy.close()

    assert position == 1
    assert [event.payload for event in events] == ["before", 1]


async def test_E3_a_reader_never_skips_a_record_that_commits_late(postgres_url: str) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow() -> Operation[None]:
        yield from append([draft("a", "k", "slow")])
        inside.set()
        assert go_on.wait(30)

    async with Runtime(storage=postgres_url) as one, Runtime(storage=postgres_url) as two:
        await one.event_log.emit("a", "k", "first")
        reader = two.event_log.subscribe("a", after=0)
        late = asyncio.ensure_future(one.service(Store).run(slow))
        await asyncio.to_thread(inside.wait, 30)
        early = asyncio.ensure_future(two.event_log.emit("a", "k", "quick"))
        seen = [await anext(reader)]
        other = await two.event_log.emit("b", "k", "another topic is not held up")

        await asyncio.sleep(0.05)  # time for a mistake to show; the outcome does not hang on it
        assert not early.done()
        assert [e.id for e in await two.event_log.read("a")] == [1]
        go_on.set()
        await asyncio.gather(late, early)
        seen += [await anext(reader), await anext(reader)]

    assert other.id == 1
    assert [(e.id, e.payload) for e in seen] == [(1, "first"), (2, "slow"), (3, "quick")]


async def test_E3_many_writers_and_a_reader_that_never_goes_back(postgres_url: str) -> None:
    async def write(runtime: Runtime, name: int) -> None:
        for n in range(15):
            await runtime.service(Store).run(partial(append, [draft("a", "k", [name, n])]))

    async with Runtime(storage=postgres_url) as one, Runtime(storage=postgres_url) as two:
        await one.event_log.emit("a", "k", "start")
        reader = one.event_log.subscribe("a", after=1)
        writers = asyncio.gather(*(write((one, two)[n % 2], n) for n in range(6)))
        seen: list[Event] = [await anext(reader) for _ in range(90)]
        await writers

    assert [event.id for event in seen] == list(range(2, 92))


async def test_killed_connections_lose_nothing_and_double_nothing(postgres_url: str) -> None:
    async with Runtime(storage=postgres_url) as runtime:
        log = runtime.event_log
        await log.emit("a", "k", -1)

        async def write(n: int) -> None:
            await log.store.run(lambda: append([draft("a", "k", n)]))

        async with await psycopg.AsyncConnection.connect(
            mask(postgres_url).split("?")[0], autocommit=True, prepare_threshold=None
        ) as killer:
            for batch in range(6):
                writing = asyncio.gather(*(write(batch * 10 + n) for n in range(10)))
                await killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'harn' AND pid <> pg_backend_pid()"
                )
                await writing
        found = sorted(event.payload for event in await log.read("a"))

    assert found == list(range(-1, 60))


async def test_a_row_that_another_session_holds_is_storage_busy_and_heals(
    postgres_url: str,
) -> None:
    async with Runtime(storage=f"{postgres_url}&busy_timeout=200ms") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        schema = driver_of(runtime).schema
        async with await psycopg.AsyncConnection.connect(mask(postgres_url).split("?")[0]) as other:
            await other.execute(f"SELECT 1 FROM {schema}.topics FOR UPDATE")

            with pytest.raises(StorageBusy, match="is locked by another connection"):
                await runtime.event_log.emit("a", "k", "busy")
            assert [e.payload for e in await runtime.event_log.read("a")] == [1]
            await other.rollback()

        assert (await runtime.event_log.emit("a", "k", 2)).id == 2


async def test_a_process_that_stops_inside_a_transaction_holds_no_one_up(
    postgres_url: str,
) -> None:
    released = threading.Event()
    tries: list[str] = []

    def move(name: str, wait: Callable[[], object]) -> Operation[str]:
        tries.append(name)
        yield ask("move_cursor", topic="a", consumer="c", position=len(tries))
        yield from append([draft("a", "moved", name)])
        if tries.count(name) == 1:
            wait()
        return name

    async with Runtime(storage=postgres_url) as slow, Runtime(storage=postgres_url) as other:
        await slow.event_log.emit("a", "k", "before")
        began = asyncio.Event()

        def stop() -> None:  # on the store's thread, as a SIGSTOP of the process would
            slow.loop.call_soon_threadsafe(began.set)
            released.wait(30)

        stopped = asyncio.ensure_future(slow.service(Store).run(partial(move, "slow", stop)))
        await began.wait()
        await other.service(Store).run(partial(move, "other", lambda: None))
        released.set()
        assert await stopped == "slow"
        events = await other.event_log.read("a")

    assert [event.payload for event in events] == ["before", "other", "slow"]
    assert tries == ["slow", "other", "slow"]


@pytest.mark.parametrize("operation", ["one statement", "several"])
async def test_a_burst_that_arrives_without_its_end_holds_no_one_up(
    postgres_database: str, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    proxy = HoldingProxy(postgres_database)
    schema = f"schema=t_{uuid.uuid4().hex[:12]}"

    def move() -> Operation[None]:
        yield ask("move_cursor", topic="a", consumer="c", position=1)
        yield from append([draft("a", "k", "held back")])

    async with (
        Runtime(storage=f"{postgres_database}?{schema}") as other,
        Runtime(storage=f"{proxy.url}?{schema}") as cut_off,
    ):
        await cut_off.event_log.emit("a", "k", "before")
        proxy.arm(b"held back")
        held: asyncio.Future[object] = asyncio.ensure_future(
            cut_off.event_log.emit("a", "k", "held back")
            if operation == "one statement"
            else cut_off.service(Store).run(move)
        )
        await asyncio.to_thread(proxy.held.wait, 30)
        await asyncio.gather(*(other.event_log.emit("a", "k", "other") for _ in range(3)))
        await held
        found = [event.payload for event in await other.event_log.read("a")]
    proxy.close()

    assert sorted(map(str, found)) == ["before", "held back", "other", "other", "other"]
    [line] = [each for each in caplog.messages if "cut off from the network" in each]
    assert "server processes" in line


async def test_a_process_that_is_cut_off_while_it_opens_the_store_holds_no_one_up(
    postgres_database: str,
) -> None:
    proxy = HoldingProxy(postgres_database)
    schema = f"schema=t_{uuid.uuid4().hex[:12]}"
    async with (
        Runtime(storage=f"{postgres_database}?{schema}") as other,
        Runtime(storage=f"{proxy.url}?{schema}") as cut_off,
    ):
        proxy.arm(b"to_regnamespace")  # it has begun to look whether the tables are up to date
        held = asyncio.ensure_future(cut_off.event_log.emit("a", "k", "held back"))
        await asyncio.to_thread(proxy.held.wait, 30)

        await other.event_log.emit("a", "k", "other")  # the one that is cut off may try again first

        assert "other" in [each.payload for each in await other.event_log.read("a")]
        await asyncio.gather(held, return_exceptions=True)  # StorageBusy, if it took too long
    proxy.close()


async def test_a_server_that_is_not_there_is_storage_busy_without_the_password() -> None:
    url = "postgresql://me:s3cret@127.0.0.1:1/none?busy_timeout=300ms"
    async with Runtime(storage=url) as runtime:
        with pytest.raises(StorageBusy) as refused:
            await runtime.event_log.emit("a", "k", 1)

    assert "s3cret" not in str(refused.value)
    assert "me:***@127.0.0.1:1" in str(refused.value)


async def test_the_pools_own_log_stays_off_the_terminal(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime(storage=f"{own_server.dsn}?busy_timeout=1500ms") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        own_server.stop("immediate")
        with pytest.raises(StorageBusy):
            await runtime.event_log.emit("a", "k", 2)
        own_server.start()
        assert (await runtime.event_log.emit("a", "k", 3)).id >= 2
    logging.getLogger("psycopg.pool").warning("of another library's pool")

    told = [each.getMessage() for each in caplog.records if each.name == "psycopg.pool"]
    assert told == ["of another library's pool"]


async def test_operations_one_after_the_other_share_a_connection(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[Pipeline] = set()
    run = Pipeline.run

    def noted(pipeline: Pipeline, statements: Any, *more: Any) -> Any:
        if any(not text.startswith("SELECT set_config") for text, _ in statements):
            used.add(pipeline)  # a hint alone is sent by another thread
        return run(pipeline, statements, *more)

    async with Runtime(storage=postgres_url) as runtime:
        await runtime.event_log.emit("a", "k", 0)
        others = [driver_of(runtime)._server.borrow() for _ in range(3)]
        for other in others:  # the pool has several now, and lends them in turns
            other.release()
        monkeypatch.setattr(Pipeline, "run", noted)
        for n in range(6):
            await runtime.event_log.emit("a", "k", n)

    assert len(used) == 1


async def test_an_idle_process_returns_its_connections_to_the_pool(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation_runner, "KEEP", 0.05)

    async with Runtime(storage=postgres_url) as runtime:
        await runtime.event_log.emit("a", "k", 0)
        pool = driver_of(runtime)._server._pool
        assert pool is not None
        async with asyncio.timeout(30):
            while not pool.get_stats().get("pool_available"):
                await asyncio.sleep(0.01)
        assert (await runtime.event_log.emit("a", "k", 1)).id == 2


async def test_S19_a_role_with_nothing_but_its_rows_can_work(postgres_url: str) -> None:
    dsn = postgres_url.split("?")[0]
    role = f"r_{uuid.uuid4().hex[:8]}"
    async with Runtime(storage=postgres_url) as runtime:
        await runtime.event_log.emit("a", "k", 1)
        schema = driver_of(runtime).schema
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as admin:
        await admin.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB")
        await admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        await admin.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
        try:
            async with Runtime(storage=postgres_url.replace("postgres@", f"{role}@")) as runtime:
                assert (await runtime.event_log.emit("a", "k", 2)).id == 2
                assert len(await runtime.event_log.read("a")) == 2
        finally:
            await admin.execute(f"DROP OWNED BY {role}")
            await admin.execute(f"DROP ROLE {role}")


async def test_E7_without_notifications_a_reader_still_finds_out(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runtime(storage=postgres_url) as one, Runtime(storage=postgres_url) as two:
        monkeypatch.setattr(driver_of(two), "watch", lambda wanted: None)
        news = two.event_log.subscribe("a")
        await news.ready()
        waiting = asyncio.ensure_future(anext(news))

        await one.event_log.emit("a", "k", "hello")

        assert (await waiting).payload == "hello"


async def test_our_own_commits_are_no_news_and_those_of_others_are(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    grown = Handover.grown

    def noted(handover: Handover, *topics: str) -> None:
        heard.extend(topics)
        grown(handover, *topics)

    monkeypatch.setattr(Handover, "grown", noted)
    async with Runtime(storage=postgres_url) as ours, Runtime(storage=postgres_url) as theirs:
        await theirs.event_log.emit("other", "k", 1)
        store = ours.service(Store)
        while "other" not in heard:  # until the listener listens
            await store.grown("any", store.growth("any"), 0.01)
            await theirs.event_log.emit("other", "k", 1)
        driver_of(ours)._notifier._told_at = 0.0  # the next one is notified with its commit
        await ours.event_log.emit("own", "k", 1)
        await theirs.event_log.emit("last", "k", 1)
        while "last" not in heard:  # notifications come in the order of their commits
            await asyncio.sleep(0.01)

    assert "own" not in heard


async def test_a_connection_that_was_cut_ends_by_itself_as_soon_as_the_url_says(
    postgres_url: str,
) -> None:
    def told(url: str) -> dict[str, str]:
        dsn = read_url(url).rest
        with psycopg.connect(dsn, **connect_options(dsn)) as connection:
            return connection.info.get_parameters()

    async with Runtime(storage=f"{postgres_url}&keepalives_count=9") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        borrowed = driver_of(runtime)._server.borrow()
        pooled = borrowed.connection.info.get_parameters()
        borrowed.release()
    other = told(f"{postgres_url}&tcp_user_timeout=7000&keepalives=0")

    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    assert [pooled[name] for name in names] == ["10", "5", "9", "15000"]
    assert (other["tcp_user_timeout"], other["keepalives"]) == ("7000", "0")
    assert connect_options("service=mine") == connect_options("service=mine", connect_timeout=5)
    assert "tcp_user_timeout" not in connect_options("service=mine")


async def test_the_schema_in_the_url_must_be_a_plain_name() -> None:
    for bad in ("a-b", "a;drop", "é", "x" * 61, 'a"b'):
        async with Runtime(storage=f"postgresql://x/y?schema={bad}") as runtime:
            with pytest.raises(ValueError, match="schema"):
                runtime.service(Store)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server of this test alone, with fsync, that may be crashed."""
    server = Server(Path(tempfile.mkdtemp(prefix="harn-pg-")), fsync=True)
    server.make()
    server.start()
    yield server
    try:
        server.stop("immediate")
    finally:
        shutil.rmtree(server.home, ignore_errors=True)


def crash_under_load(server: Server, restarts: int) -> tuple[list[int], list[int]]:
    """Write while the server crashes and comes back; return what was acknowledged and found."""

    async def main() -> tuple[list[int], list[int]]:
        acknowledged: list[int] = []
        number = iter(range(10**9))
        stop = asyncio.Event()

        async with Runtime(storage=f"{server.dsn}?busy_timeout=20s") as runtime:
            log = runtime.event_log
            await log.emit("a", "k", -1)

            async def write() -> None:
                while not stop.is_set():
                    n = next(number)
                    try:
                        await log.store.run(partial(append, [draft("a", "k", n)]))
                    except StorageError:
                        continue
                    acknowledged.append(n)

            writers = [asyncio.ensure_future(write()) for _ in range(6)]
            for _ in range(restarts):
                goal = len(acknowledged) + 40
                while len(acknowledged) < goal:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(server.restart_at_once)
            stop.set()
            await asyncio.gather(*writers)
            return acknowledged, [event.payload for event in await log.read("a", after=1)]

    return asyncio.run(main())


def test_E1_a_server_crash_under_load_loses_and_doubles_nothing(own_server: Server) -> None:
    acknowledged, found = crash_under_load(own_server, 2)

    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.stress
def test_G11_many_server_crashes_under_load(
    own_server: Server, at_least: Callable[[int], int]
) -> None:
    acknowledged, found = crash_under_load(own_server, at_least(5))

    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))


async def test_an_operation_that_only_reads_sees_one_moment(postgres_url: str) -> None:
    read, written = threading.Event(), threading.Event()

    def look() -> Operation[tuple[Rows, Rows]]:
        before = yield ask("topic_head", topic="a")
        read.set()
        written.wait(20)
        after = yield ask("topic_head", topic="a")
        return before, after

    async with Runtime(storage=postgres_url) as runtime:
        await runtime.event_log.emit("a", "k", 1)
        looking = asyncio.ensure_future(runtime.service(Store).run(look, write=False))
        await asyncio.to_thread(read.wait, 20)
        await runtime.event_log.emit("a", "k", 2)
        written.set()
        before, after = await looking

    assert before == after == [(1,)]


async def test_E6_an_append_that_waits_for_a_topic_holds_no_later_one(postgres_url: str) -> None:
    dsn, schema = postgres_url.split("?schema=")
    waits = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    both = [draft("b", "k", 1), draft("a", "k", 1)]
    async with (
        Runtime(storage=postgres_url) as runtime,
        await psycopg.AsyncConnection.connect(dsn) as other,
    ):
        store = runtime.service(Store)
        await store.run(lambda: append(both))
        await other.execute(f"SET search_path TO {schema}")
        await other.execute("SELECT 1 FROM topics WHERE name = 'a' FOR UPDATE")
        waiting = asyncio.ensure_future(store.run(lambda: append(both)))
        while not await (await other.execute(waits)).fetchall():
            await asyncio.sleep(0.01)

        await other.execute("SELECT 1 FROM topics WHERE name = 'b' FOR UPDATE NOWAIT")
        await other.commit()

        assert await waiting == [(2, ANY), (2, ANY)]


async def test_an_older_store_gets_room_in_its_primary_key_while_it_is_used(
    postgres_url: str,
) -> None:
    dsn, schema = read_url(postgres_url).rest, read_url(postgres_url).options["schema"]
    older = f"""ALTER INDEX "{schema}".jobs_pkey RESET (fillfactor);
        UPDATE "{schema}".harn_schema SET version = 6 WHERE concern = 'jobs'"""
    room = f"""SELECT reloptions FROM pg_class WHERE oid = '"{schema}".jobs_pkey'::regclass"""
    async with Runtime(storage=postgres_url):
        queue = worker_queue("q")
        await queue.enqueue(1)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(older)

        # Another process opens it in the middle of a transaction of the first one.
        with psycopg.connect(dsn) as busy:
            busy.execute(f"""UPDATE "{schema}".jobs SET priority = priority""")
            async with Runtime(storage=postgres_url) as newer:
                await newer.event_log.emit("a", "k", 1)
        await queue.enqueue(2)

    with psycopg.connect(dsn) as connection:
        assert connection.execute(room).fetchone() == (["fillfactor=50"],)
