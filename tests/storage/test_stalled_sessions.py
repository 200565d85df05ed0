"""Which sessions of PostgreSQL are ended because they hold locks and their client is silent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from harn import Runtime, worker_queue
from harn.storage.engines.postgres import stalled_sessions
from harn.storage.engines.postgres.connections import Borrowed, PostgresServer
from harn.storage.engines.postgres.stalled_sessions import end_stalled_sessions
from tests.postgres import own_schema

LOCK_OUR_ROW = b"UPDATE topics SET head = head"
LOCK_THEIR_ROW = b"UPDATE orders SET id = id"
ENQUEUE = b"SELECT enqueue('reviews', '1')"
STREAM = b"COPY events FROM STDIN"
LONG_ANSWER = b"SELECT repeat('x', 1000000) FROM generate_series(1, 50)"


class Sessions:
    """Opens sessions that are left in the middle of something, and ends the stalled ones."""

    def __init__(self, url: str) -> None:
        self._dsn, _, self._schema = url.partition("?schema=")
        self._server = PostgresServer(self._dsn, "here", self._schema, 2, 5000)
        self._opened = ExitStack()
        self.borrowed: Borrowed = self._server.borrow()

    def close(self) -> None:
        self._opened.close()
        self.borrowed.release()
        self._server.close()

    def open(self, name: str) -> psycopg.Connection[Any]:
        connection = psycopg.connect(
            self._dsn,
            autocommit=True,
            application_name=name,
            options=f"-c search_path={self._schema}",
        )
        self._opened.callback(connection.close)
        return connection

    def in_mid_burst(self, name: str, *statements: bytes) -> psycopg.Connection[Any]:
        """Have *statements* carried out in a transaction, and send no Sync after them."""
        connection = self.open(name)
        pgconn = connection.pgconn
        pgconn.enter_pipeline_mode()
        for each in (b"BEGIN", *statements):
            pgconn.send_query_params(each, [])
        pgconn.send_flush_request()
        while pgconn.flush():
            pass
        return connection

    def until_it_waits(self, connection: psycopg.Connection[Any], event: str) -> None:
        """Wait until the server waits for the client of *connection*."""
        look = self.open("test")
        query = "SELECT state, wait_event FROM pg_stat_activity WHERE pid = %s"
        while look.execute(query, [connection.info.backend_pid]).fetchone() != ("active", event):
            pass

    def read_all(self, connection: psycopg.Connection[Any]) -> None:
        """Send the Sync of a burst, and read all answers to it."""
        pgconn = connection.pgconn
        pgconn.pipeline_sync()
        result = pgconn.get_result()
        while result is None or result.status != ExecStatus.PIPELINE_SYNC:
            result = pgconn.get_result()
        pgconn.exit_pipeline_mode()

    def end(self) -> int:
        """End the sessions that are stalled; return how many there were."""
        return end_stalled_sessions(self.borrowed.connection, self._server)


@pytest.fixture
async def sessions(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Sessions]:
    monkeypatch.setattr(stalled_sessions, "IDLE_MS", 0)  # each one has been silent too long
    async with Runtime(storage=postgres_url) as runtime:
        await runtime.event_log.emit("a", "k", 1)
        made = Sessions(postgres_url)
        made.open("test").execute("CREATE TABLE orders (id int); INSERT INTO orders VALUES (1)")
        yield made
        made.close()


async def test_a_session_of_ours_that_is_silent_in_mid_burst_is_ended(sessions: Sessions) -> None:
    stalled = sessions.in_mid_burst("harn", LOCK_OUR_ROW)
    sessions.until_it_waits(stalled, "ClientRead")

    assert sessions.end() == 1


@pytest.mark.parametrize("name", ["harn", "shop"])
async def test_a_transaction_of_the_caller_that_has_enqueued_is_left_alone(
    sessions: Sessions, name: str
) -> None:
    caller = sessions.in_mid_burst(name, ENQUEUE)
    sessions.until_it_waits(caller, "ClientRead")

    assert sessions.end() == 0
    caller.pgconn.send_query_params(b"COMMIT", [])
    sessions.read_all(caller)
    claim = await worker_queue("reviews").claim_next("worker")
    assert claim is not None and claim.job.payload == 1


async def test_a_session_that_is_not_ours_is_left_alone(sessions: Sessions) -> None:
    """The store may be in a schema that has tables of an application, too."""
    theirs = sessions.in_mid_burst("shop", LOCK_THEIR_ROW)
    sessions.until_it_waits(theirs, "ClientRead")

    assert sessions.end() == 0


async def test_a_session_behind_a_pooler_that_adds_its_hosts_name_is_ours(
    sessions: Sessions,
) -> None:
    stalled = sessions.in_mid_burst("harn - 10.0.0.7:5001", LOCK_OUR_ROW)
    sessions.until_it_waits(stalled, "ClientRead")

    assert sessions.end() == 1


async def test_a_stream_is_ended_only_after_the_time_of_a_statement(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not say when it received the last row of a stream."""
    streaming = sessions.open("harn")
    streaming.pgconn.send_query(STREAM)
    sessions.until_it_waits(streaming, "ClientRead")

    assert sessions.end() == 0
    monkeypatch.setattr(stalled_sessions, "STATEMENT_MS", 0)
    assert sessions.end() == 1


async def test_a_session_whose_answer_is_not_read_is_ended_after_the_time_of_a_statement(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = sessions.in_mid_burst("harn", LOCK_OUR_ROW, LONG_ANSWER)
    sessions.until_it_waits(unread, "ClientWrite")

    assert sessions.end() == 0
    monkeypatch.setattr(stalled_sessions, "STATEMENT_MS", 0)
    assert sessions.end() == 1


async def test_a_session_that_only_reads_is_left_alone(sessions: Sessions) -> None:
    reading = sessions.in_mid_burst("harn", b"SELECT * FROM events")
    sessions.until_it_waits(reading, "ClientRead")

    assert sessions.end() == 0


async def test_a_session_of_another_store_is_left_alone(
    sessions: Sessions, postgres_database: str
) -> None:
    with own_schema(postgres_database) as url:
        async with Runtime(storage=url) as runtime:
            await runtime.event_log.emit("a", "k", 1)
        schema = url.partition("?schema=")[2]
        stalled = sessions.in_mid_burst("harn", f"UPDATE {schema}.topics SET head = 1".encode())
        sessions.until_it_waits(stalled, "ClientRead")

        assert sessions.end() == 0
        stalled.close()
