"""A PostgreSQL server as its driver sees it: connections, tables, and what errors mean."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
from psycopg.conninfo import conninfo_to_dict

from harn.clock import SystemClock
from harn.errors import HarnError, StorageBusy, StorageCorrupt, StorageError
from harn.masking import without_secrets_of
from harn.storage.engines.postgres.pipeline import Pipeline, Statement
from harn.storage.queries import load_queries, missing_steps

if TYPE_CHECKING:
    from psycopg import Connection

logger: logging.Logger = logging.getLogger("harn.storage")

STATEMENT_MS = 30_000
IDLE_MS = 2000
"""Milliseconds after which the server ends a transaction whose client sends nothing more.

A process that was stopped, or whose network was cut, holds its locks that long. It is shorter than
the wait for a lock, so that the others get their turn and no error. A client that was only slow
tries again.
"""
FIRST_MS = 3000
"""Milliseconds after which a server that has never been reached is given up."""
FORGET_MS = 7 * 86_400_000
"""Milliseconds after which a producer that writes no more is forgotten."""
REACH = 0.5
"""Seconds to wait for a connection in one attempt; the pool stops trying by itself after one."""
POOL = "harn-pg"
CONNECT: dict[str, Any] = {
    "autocommit": True,
    "prepare_threshold": None,  # see `Pipeline`
    "connect_timeout": 5,
    "application_name": "harn",
    "client_encoding": "utf8",
}
KEEPALIVE: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""How soon a connection ends whose network was cut, without a word from the other side.

The kernel asks after 10 idle seconds, and gives up after 15 s without an answer (milliseconds for
the last one). Its own default is some hours, in which a caller would wait for an answer.
"""


def connect_options(dsn: str, **more: Any) -> dict[str, Any]:
    """Return what every connection of ours is opened with; the user's *dsn* says more or else."""
    given = conninfo_to_dict(dsn)
    if "service" in given:  # a file says more, which would lose to what is given here
        return {**CONNECT, **more}
    unsaid = {name: value for name, value in KEEPALIVE.items() if name not in given}
    return {**CONNECT, **unsaid, **more}


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


class Server:
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
            "lock_ms": str(self._busy_ms),
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


@contextlib.contextmanager
def answered_within(connection: Connection[Any], ms: int) -> Iterator[None]:
    """Cut *connection* if the block lasts longer than *ms*.

    A pooler lets a client in before it has a server for it, and then says nothing: no limit that
    is set on the server can help.
    """
    late = threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError, psycopg.Error):
            with socket.socket(fileno=os.dup(connection.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(ms / 1000, cut)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # Python 3.12 starts no thread while it is ending
        timer.start()
    try:
        yield
    except Exception as error:
        if not late.is_set():
            raise
        raise psycopg.OperationalError(
            f"let in, but no answer within {ms / 1000:g} s; a pooler without a free connection? "
            "Raise its pool size, lower pool_size in the URL, or use its transaction mode"
        ) from error
    finally:
        timer.cancel()


def is_made(dsn: str, schema: str) -> bool:
    """Tell whether a store was made in *schema*.

    A server that does not answer may have one: opening it then says what is wrong.
    """
    names = {"schema": f'"{schema}"', "versions": f'"{schema}".harn_schema'}
    try:
        with psycopg.connect(dsn, **connect_options(dsn)) as connection:
            cursor = psycopg.ClientCursor(connection)
            with answered_within(connection, FIRST_MS):
                [(_, listed)] = cursor.execute(load_queries("postgres")["has_schema"].text, names)
            return bool(listed)
    except psycopg.Error:
        return True


def migrate(connection: Connection[Any], schema: str, busy_ms: int, where: str) -> None:
    """Bring every concern's tables up to date, in one transaction under an advisory lock."""
    queries = load_queries("postgres")

    def run(name: str, **params: Any) -> list[Any]:
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(queries[name].text, params)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []

    def applied() -> dict[str, int]:
        [(_, listed)] = run("has_schema", schema=f'"{schema}"', versions=f'"{schema}".harn_schema')
        return dict(run("versions")) if listed else {}

    path = f'"{schema}", pg_catalog'
    try:
        run(
            "begin_migration",
            path=path,
            lock_ms=str(busy_ms),
            statement_ms=str(STATEMENT_MS),
            lock=f"harn:{schema}",
        )
        steps = missing_steps(applied(), "postgres", where)
        if steps:
            [(exists, _)] = run("has_schema", schema=f'"{schema}"', versions="none")
            if not exists:
                connection.execute(queries["make_schema"].text.format(schema=schema))
            run("make_versions")
            for step in steps:
                connection.execute(step.script)
                run("note_version", concern=step.concern, version=step.version)
        run("forget_producers", before=SystemClock().now_ms() - FORGET_MS)
        connection.execute("COMMIT")
    except psycopg.errors.InsufficientPrivilege as error:
        connection.execute("ROLLBACK")
        why = str(error).partition("\n")[0]
        raise StorageError(
            f"{where} must be made or upgraded, and this role may not do that ({why}); open it "
            f"once with the role that owns the schema {schema!r}, or let this one create there"
        ) from error
    except BaseException:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise


class _Connection(psycopg.Connection[Any]):
    """A connection that keeps what is prepared on it."""

    statements: Pipeline | None = None


def pipeline_of(connection: Connection[Any]) -> Pipeline:
    assert isinstance(connection, _Connection)
    assert connection.statements is not None
    return connection.statements


def connection_lost(error: psycopg.Error) -> bool:
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg.InterfaceError):
        return True
    if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
        return True
    lost = error.sqlstate is None or error.sqlstate.startswith(("08", "57P", "53"))
    return isinstance(error, psycopg.OperationalError) and lost


def translated(error: psycopg.Error, server: Server) -> HarnError:
    where, told = server.where, server.told(error)
    state = error.sqlstate or ""
    ours: HarnError
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
        ours = StorageBusy(f"{where} is held by someone else ({told}); try again")
    elif state.startswith("XX"):
        ours = StorageCorrupt(f"{where}: {told}")
    else:
        ours = StorageError(f"{where}: {told}")
    ours.__cause__ = error
    return ours
