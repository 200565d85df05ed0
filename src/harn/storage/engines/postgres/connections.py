"""The pool of connections to a PostgreSQL server, which the store's threads borrow from."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool

from harn.masking import without_secrets_of
from harn.storage.engines.postgres.connecting import (
    FIRST_MS,
    IDLE_MS,
    STATEMENT_MS,
    answered_within,
    connect_options,
)
from harn.storage.engines.postgres.libpq_pipeline import Pipeline, Statement
from harn.storage.engines.postgres.postgres_migration import migrate
from harn.storage.queries import load_queries

if TYPE_CHECKING:
    from psycopg import Connection

logger: logging.Logger = logging.getLogger("harn.storage")

LOCK_MS = IDLE_MS + 500
"""Milliseconds of one wait for a lock, at most; by then a silent holder has been silent too long.

A longer `busy_timeout` is several such waits. Between them a thread looks for stalled sessions.
"""
REACH = 0.5
"""Seconds to wait for a connection in one attempt; the pool stops trying by itself after one."""
POOL = "harn-pg"


class _ToOurLog(logging.Filter):
    """Keeps the pool's log lines about this store's connections off the terminal.

    A caller that waits for a connection gets an error that says the same. Other pools of the
    process keep their log lines.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop *record* if it comes from a thread of ours; our own log has it, for debugging."""
        if not (record.threadName or "").startswith(POOL):
            return True
        logger.debug(record.getMessage())
        return False


logging.getLogger("psycopg.pool").addFilter(_ToOurLog())


class PostgresServer:
    """The pool of connections, opened and migrated when first used."""

    def __init__(self, dsn: str, where: str, schema: str, size: int, busy_ms: int) -> None:
        self.where = where
        self.schema = schema
        self._dsn = dsn
        self._size = size
        self._busy_ms = busy_ms
        self._lock = threading.Lock()
        self._pool: psycopg_pool.ConnectionPool[Any] | None = None
        self.reached: bool = False
        """Whether it was ever there and its tables are up to date."""
        self.prepares = True
        """Whether a session keeps what we leave there; not behind every pooler."""
        self.has_functions = True
        """Whether the schema's functions may be called, as far as is known."""
        self._sessions: weakref.WeakValueDictionary[int, _Connection] = (
            weakref.WeakValueDictionary()
        )

    def borrow(self) -> Borrowed:
        """Lend a connection until it is released; a broken one is replaced then."""
        with self._lock:
            if not self.reached:
                # Not through the pool, which would keep to itself why there is no connection.
                options = connect_options(self._dsn, connect_timeout=2)
                with psycopg.connect(self._dsn, **options) as connection:
                    with answered_within(connection, min(self._busy_ms, FIRST_MS)):
                        connection.execute(load_queries("postgres")["backend_pid"].text)
                    with answered_within(connection, STATEMENT_MS):
                        migrate(connection, self.schema, self._busy_ms, self.where)
                self.reached = True
            if self._pool is None:
                self._pool = psycopg_pool.ConnectionPool(
                    self._dsn,
                    min_size=0,
                    max_size=self._size,
                    name=POOL,
                    num_workers=1,
                    reconnect_timeout=REACH,
                    connection_class=_Connection,
                    kwargs=connect_options(self._dsn),
                    configure=self._configure,
                    open=True,
                )
            pool = self._pool
        return Borrowed(pool)

    def _configure(self, connection: Connection[Any]) -> None:
        # A pooler lends us another backend each time, which knows nothing that we prepared or
        # set, or knows something else by its name.
        with answered_within(connection, self._busy_ms):
            row = connection.execute(load_queries("postgres")["backend_pid"].text).fetchone()
        own = row is not None and row[0] == connection.info.backend_pid
        assert isinstance(connection, _Connection)
        connection.statements = Pipeline(connection, is_own=self.prepares and own)
        if connection.statements.is_own:
            self._sessions[connection.info.backend_pid] = connection
            connection.statements.run([self.limits(for_session=True)])

    def limits(self, *, for_session: bool) -> Statement:
        """Return what bounds every statement of a session, or of one transaction."""
        return load_queries("postgres")["set_limits"].text, {
            "path": f'"{self.schema}", pg_catalog',
            "statement_ms": str(STATEMENT_MS),
            "idle_ms": str(IDLE_MS),
            "lock_ms": str(lock_wait_ms(self._busy_ms)),
            "local": not for_session,
        }

    def has_session(self, pid: int) -> bool:
        """Tell whether the server process *pid* serves one of our connections, and no other.

        A notification that it sent tells of our own commit.
        """
        connection = self._sessions.get(pid)
        return connection is not None and not connection.closed

    def told(self, error: BaseException) -> str:
        """Return what *error* says, without the password."""
        return without_secrets_of(self._dsn, str(error))

    def close(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            self._pool.close(timeout=2)
            self._pool = None


def lock_wait_ms(busy_ms: int) -> int:
    """Return how long one wait for a lock lasts, so that a few of them make *busy_ms*.

    >>> lock_wait_ms(5000), lock_wait_ms(3000), lock_wait_ms(200)
    (2500, 1500, 200)
    """
    return math.ceil(busy_ms / max(1, math.ceil(busy_ms / LOCK_MS)))


class Borrowed:
    """A connection of the pool, until it is released."""

    def __init__(self, pool: psycopg_pool.ConnectionPool[Any]) -> None:
        self._pool = pool
        self.connection: Connection[Any] = pool.getconn(timeout=REACH)

    def release(self) -> None:
        """Return the connection to the pool, which replaces it if it is broken."""
        with contextlib.suppress(psycopg.Error):
            pipeline_of(self.connection).finish()
        self._pool.putconn(self.connection)


class _Connection(psycopg.Connection[Any]):
    """A connection that keeps what is prepared on it."""

    statements: Pipeline | None = None


def pipeline_of(connection: Connection[Any]) -> Pipeline:
    """Return the pipeline of *connection*, one of the pool's."""
    assert isinstance(connection, _Connection)
    assert connection.statements is not None
    return connection.statements
