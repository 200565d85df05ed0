"""One thread of a PostgreSQL store: it carries out an operation, again if that can help.

The hard case is a connection lost between COMMIT and its answer. Each transaction therefore
begins by writing its number into its producer's row, and only if it is higher than what is
there. A retry uses the same number: if the first attempt has landed, or is landing at this very
moment (the row is locked, so the retry waits for it), nothing is written twice and the answer of
the first attempt is the answer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from harn.clock import Clock, SystemClock
from harn.errors import HarnError, StorageBusy
from harn.storage.contract import TAKE_OFFSETS, Draft, topics_of
from harn.storage.engines.postgres.append_columns import append_columns, placed
from harn.storage.engines.postgres.arrays import array_types
from harn.storage.engines.postgres.connecting import FIRST_MS, STATEMENT_MS, answered_within
from harn.storage.engines.postgres.connections import Borrowed, PostgresServer, pipeline_of
from harn.storage.engines.postgres.libpq_pipeline import Statement
from harn.storage.engines.postgres.notify import Notifier
from harn.storage.engines.postgres.server_errors import connection_lost, translated
from harn.storage.engines.postgres.stalled_sessions import end_stalled_sessions
from harn.storage.engines.store_thread import Request
from harn.storage.operations import Ask, Row, Rows, changed_nothing, drive
from harn.storage.queries import Query, load_queries

if TYPE_CHECKING:
    from psycopg import Connection

MOST_IN_ONE = 1000
"""Rows that go into one statement, at most; more are sent in a stream."""
UNLESS = "unless_waiting"
"""What an append names a queue by that must have nothing in the outbox."""
_NOT_PREPARED = ("26000", "42P05")
"""A prepared statement is missing, or is there already: a pooler shares the connection."""
_NO_FUNCTION = ("42883", "42501")
"""A function is missing, or the role may not call it."""
FUNCTIONS = frozenset({"work_enter", "work_enter_one", "work_look", "work_apply"})
"""Statements that call a function of the schema."""
PAUSE = 0.05
"""Seconds between two attempts to reach a server that is away."""
KEEP = 30.0
"""Seconds for which a thread keeps a connection; then the pool may have it replaced or closed."""


class OperationRunner:
    """Carries out the operations of one thread, again if that can help."""

    def __init__(
        self,
        server: PostgresServer,
        notifier: Notifier,
        clock: Callable[[], Clock],
        producer: str,
        busy_ms: int,
    ) -> None:
        self._server = server
        self._notifier = notifier
        self._clock = clock
        self._producer = producer
        self._busy_ms = busy_ms
        self._seq = 0
        self._queries = load_queries("postgres")
        self._touched: set[str] = set()
        self._committing = False
        self._queued: list[Statement] = []
        self._claims = False
        """Whether the number of the transaction is still to be claimed."""
        self._claim_at = 0
        self._is_over = False
        """Whether the operation was carried out and committed in one statement."""
        self._kept: Borrowed | None = None
        self._keep_until = 0.0

    @property
    def patience(self) -> float | None:
        """The seconds after which an idle thread is to `let_go`; None if it holds nothing."""
        return None if self._kept is None else KEEP

    def let_go(self) -> None:
        """Return the connection to the pool."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.release()

    def carry_out(self, request: Request) -> None:
        """Carry *request* out, again while that can help and `busy_timeout` has not passed."""
        self._seq += 1
        attempts = 0
        started = SystemClock.monotonic()
        if started > self._keep_until:
            self.let_go()
        while True:
            self._committing = is_sound = False
            connection: Connection[Any] | None = None
            try:
                connection = self._connection()
                pipeline_of(connection).is_own &= self._server.prepares
                attempts += 1
                self._attempt(connection, request, attempts > 1)
                is_sound = True
                return
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
                lost: psycopg.Error = error
            except psycopg.errors.LockNotAvailable as error:
                if connection is not None and not connection.closed:
                    end_stalled_sessions(connection, self._server)
                lost = error
            except psycopg.Error as error:
                if self._does_without(error):
                    continue
                if not connection_lost(error):
                    request.error = translated(error, self._server)
                    return
                lost = error
            except BaseException as error:
                request.error = error
                return
            finally:
                if not is_sound:
                    self.let_go()  # the pool replaces it if it is broken
            patience = self._busy_ms if self._server.reached else min(self._busy_ms, FIRST_MS)
            if (SystemClock.monotonic() - started) * 1000 > patience:
                request.error = self._given_up(lost)
                return
            threading.Event().wait(PAUSE)

    def _does_without(self, error: psycopg.Error) -> bool:
        """Tell whether *error* names what this server does not offer, and use it no longer."""
        if error.sqlstate in _NOT_PREPARED and self._server.prepares:
            self._server.prepares = False  # a pooler on the way does not keep them
            return True
        if error.sqlstate in _NO_FUNCTION and self._server.has_functions:
            self._server.has_functions = False  # what they do is done step by step
            return True
        return False

    def _connection(self) -> Connection[Any]:
        """Return the thread's connection, taken from the pool if it has none.

        It is kept: the way through the pool takes as long as a short statement, and on another
        connection the same statements would be prepared again.
        """
        if self._kept is None:
            self._kept = self._server.borrow()
            self._keep_until = SystemClock.monotonic() + KEEP
        return self._kept.connection

    def _attempt(self, connection: Connection[Any], request: Request, again: bool) -> None:
        write = request.durability != "memory"
        self._touched = set()
        self._begin(connection, write)
        try:
            if again:
                self._flush(connection)  # by itself: nothing else may fail if it has landed
            result = drive(
                request.recipe(),
                lambda asked: self._execute(connection, asked),
                lambda asked: self._together(connection, asked),
                lambda asked: self._whole(connection, asked),
            )
            if self._is_over:
                request.result, request.touched = result, self._touched
                return
            if self._claims:
                self._flush(connection)  # not with the commit: whether we may is not known yet
            request.result, request.touched = result, self._touched
            self._committing = write and not changed_nothing(result)
            self._queued.append(("COMMIT" if self._committing or not write else "ROLLBACK", {}))
            news = self._notifier.at_once(self._touched)
            self._flush(connection, afterwards=news)
            if self._touched and not news:
                self._notifier.tell(self._touched)
        except _Landed:  # its result is in the request, or in the producer's row
            _roll_back(connection)
            self._take_answer(connection, request)
            self._notifier.tell(request.touched or set())
        except BaseException as error:
            if connection.closed:
                # Behind a pooler a connection may break with two errors, and what the library
                # makes of that can be anything, a ValueError too.
                raise psycopg.OperationalError(f"the connection was lost: {error}") from error
            _roll_back(connection)
            raise

    def _begin(self, connection: Connection[Any], write: bool) -> None:
        """Have the transaction opened along with the first statement of the operation."""
        self._is_over = False
        self._claims = write
        self._queued = [
            ("BEGIN" if write else "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", {})
        ]
        if not pipeline_of(connection).is_own:
            self._queued.append(self._server.limits(for_session=False))
        if write:
            claim = {"producer": self._producer, "seq": self._seq, "now": self._fake_now()}
            self._claim_at = len(self._queued)
            self._queued.append((self._queries["claim_number"].text, claim))

    def _execute(self, connection: Connection[Any], asked: Ask) -> Rows:
        query = self._queries[asked.name]
        if asked.rows is not None and query.types:
            few = self._queries.get(f"{asked.name}_few")
            if few is None or len(asked.rows) > MOST_IN_ONE:
                self._flush(connection)
                return _copy(connection, query, asked.rows)
            query = few
        self._queue_statement(query, asked)
        return self._flush(connection)[0] if _gives_rows(query.text) else []

    def _together(self, connection: Connection[Any], asked: Sequence[Ask]) -> list[Rows] | None:
        if any(_is_long(each) for each in asked):
            return None
        read = [self._queue(each) for each in asked]
        answers = self._flush(connection, len(asked))
        return [each(rows) for each, rows in zip(read, answers, strict=True)]

    def _whole(self, connection: Connection[Any], asked: Ask) -> Rows | None:
        """Do in one statement what other engines do in steps."""
        if _is_long(asked) or (asked.name in FUNCTIONS and not self._server.has_functions):
            return None
        if asked.is_last:
            return self._at_once(connection, asked)
        if asked.params.get("places") is False:
            self._queue(asked)
            return []
        answers = self._together(connection, [asked])
        return None if answers is None else answers[0]

    def _at_once(self, connection: Connection[Any], asked: Ask) -> Rows | None:
        """Carry the whole operation out in one statement, which is a transaction by itself.

        None if the statement refuses, or if the number was claimed: then the attempt before may
        still be under way.
        """
        if not self._claims:
            return None
        del self._queued[0]  # without BEGIN, the statements up to the next sync are a transaction
        self._claim_at -= 1
        self._queue(asked)
        self._committing = True
        news = self._notifier.at_once(self._touched)
        [rows] = self._flush(connection, afterwards=news)
        self._is_over = rows[0][0] is not None
        if self._is_over:
            if not news:
                self._notifier.tell(self._touched)
            return rows
        self._committing = False
        self._touched = set()
        self._begin(connection, write=True)
        return None

    def _take_answer(self, connection: Connection[Any], request: Request) -> None:
        """Make the result of an operation that has landed in one statement, from its answer."""
        query = self._queries["landed_answer"]
        own = pipeline_of(connection).is_own
        self._queued = [] if own else [self._server.limits(for_session=False)]
        self._queue_statement(query, Ask("", {"producer": self._producer}))
        [rows] = self._flush(connection)
        if rows:
            self._touched = set()
            answer = functools.partial(self._answered, rows)
            request.result = drive(request.recipe(), answer, whole=answer)
            request.touched = self._touched

    def _answered(self, rows: Rows, asked: Ask) -> Rows:
        assert asked.is_last
        self._touched.update({item.topic for item in asked.params["drafts"]})
        return rows

    def _queue(self, asked: Ask) -> Callable[[Rows], Any]:
        """Have *asked* sent with the next ones; return what makes its answer of its rows."""
        query = self._queries[asked.name]
        drafts: Sequence[Draft] | None = asked.params.get("drafts")
        if drafts is None:
            self._queue_statement(query, asked)
            return _as_they_are
        self._touched.update({item.topic for item in drafts})
        if asked.fill is not None:
            self._queue_statement(query, Ask(asked.name, fill=asked.fill))
            return _as_they_are
        topics = topics_of(drafts)
        params = {**append_columns(drafts, topics), UNLESS: asked.params.get(UNLESS)}
        self._queue_statement(query, Ask(asked.name, params))
        return functools.partial(placed, drafts, topics)

    def _queue_statement(self, query: Query, asked: Ask) -> None:
        params = dict(asked.params)
        if asked.fill is not None:
            params |= asked.fill()
        if asked.rows is not None:
            columns = zip(*asked.rows, strict=True) if asked.rows else [()] * len(asked.columns)
            params = dict(zip(asked.columns, columns, strict=True))
        for name, as_array in array_types(query.text).items():
            params[name] = as_array(params[name])
        if query.wants_now:
            params["now"] = self._fake_now()
        if query.takes_number:
            params |= self._take_number()
        if asked.name == TAKE_OFFSETS:
            self._touched.add(params["topic"])
        self._queued.append((query.text, params))

    def _take_number(self) -> dict[str, Any]:
        """Return the parameters of a statement that claims the number itself, if it is to be."""
        number = self._seq if self._claims else None
        if self._claims:
            del self._queued[self._claim_at]
            self._claim_at = len(self._queued)
        return {
            "producer": self._producer,
            "producer_number": number,
            "clock": self._fake_now(),
        }

    def _fake_now(self) -> int | None:
        """Return the time of a fake clock; None if the server's own counts."""
        clock = self._clock()
        return clock.now_ms() if clock.is_fake else None

    def _flush(
        self, connection: Connection[Any], wanted: int = 1, afterwards: Sequence[Statement] = ()
    ) -> list[Rows]:
        """Send what has been asked for, in one round trip; return the rows of the last ones.

        A statement that gives no rows waits here for the next one that does.
        """
        queued, self._queued = self._queued, []
        if not queued:
            return []
        pipeline = pipeline_of(connection)
        if pipeline.is_own:
            results = pipeline.run(queued, afterwards)
        else:  # a pooler may have no server for us, and then nothing there limits the wait
            with answered_within(connection, STATEMENT_MS):
                results = pipeline.run(queued, afterwards)
        if self._claims:
            self._claims = False
            if not results[self._claim_at].ntuples:
                raise _Landed
        return [pipeline.rows(result) for result in results[-wanted:]]

    def _given_up(self, error: psycopg.Error) -> HarnError:
        """Return the error of an operation for which `busy_timeout` has passed."""
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return translated(error, self._server)
        why = self._server.told(error).partition("\n")[0]
        what = "the answer to a commit was lost; it may have landed" if self._committing else why
        ours = StorageBusy(f"{self._server.where} is out of reach ({what}); try again")
        ours.__cause__ = error
        return ours


def _roll_back(connection: Connection[Any]) -> None:
    pipeline_of(connection).finish()
    connection.execute("ROLLBACK")


def _is_long(asked: Ask) -> bool:
    """Tell whether so much is appended that a stream is faster."""
    return len(asked.params.get("drafts", ())) > MOST_IN_ONE


def _as_they_are(rows: Rows) -> Rows:
    return rows


class _Landed(Exception):
    """The attempt before this one has landed."""


def _copy(connection: Connection[Any], query: Query, rows: Sequence[Row]) -> Rows:
    """Send *rows* in one stream; many times faster than a statement for each."""
    with connection.cursor() as cursor, cursor.copy(query.text) as copy:
        copy.set_types(query.types)
        for row in rows:
            copy.write_row(row)
    return []


@functools.cache
def _gives_rows(text: str) -> bool:
    return text.lstrip().upper().startswith(("SELECT", "WITH", "VALUES")) or "RETURNING" in text
