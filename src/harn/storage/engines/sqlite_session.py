"""One apsw connection and the operations that run on it: what SQLite, memory and files share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import apsw

from harn.clock import Clock
from harn.errors import StorageBusy, StorageCorrupt, StorageError
from harn.storage.contract import TAKE_OFFSETS
from harn.storage.operations import Ask, Operation, Row, Rows, T, drive
from harn.storage.queries import WIDE, Query, load_queries

MEMORY = "memory://"
ODD_ROW = (TypeError, AttributeError)
"""What an operation raises that was sent something other than what it stored."""
MOST_TOPICS = 1000
"""Topics whose place is remembered."""


class TooLong(Exception):
    """An operation was not as brief as it had to be; what it did must be undone."""


class Session:
    """A connection, the statements by name, and the store's time inside a transaction."""

    def __init__(
        self, connection: apsw.Connection, clock: Callable[[], Clock], *, read_only: bool = False
    ) -> None:
        # Plans must not depend on bound values: otherwise every new value is prepared again.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.connection = connection
        self.touched: set[str] = set()
        self._queries = load_queries("sqlite")
        self._move_head = self._queries["move_head"].text
        self._topics: dict[str, tuple[int, int, int]] = {}
        """Where topics were when offsets of them were last taken: id, head, newest time."""
        self._clock = clock
        self._read_only = read_only
        self._floor = 0
        self._ticked = False
        self._ms: int | None = None
        """The clock's time, as this operation has read it."""

    def begin(self) -> None:
        """Open a transaction: a writing one takes the lock at once."""
        self._ticked, self._ms = False, None
        self.connection.execute("BEGIN" if self._read_only else "BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make everything since `begin` true."""
        self.connection.execute("COMMIT")

    def rollback(self) -> None:
        """Undo everything since `begin`; harmless when there is nothing."""
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def drive(self, operation: Operation[T]) -> T:
        """Carry *operation* out inside the open transaction."""
        self.touched, self._ms = set(), None
        return drive(operation, self.execute)

    def drive_briefly(self, operation: Operation[T], most: int) -> T:
        """Carry *operation* out unless it wants more than *most* statements (`TooLong`)."""
        self.touched, self._ms = set(), None
        left = most

        def execute(asked: Ask) -> Rows:
            nonlocal left
            left -= 1
            if left < 0:
                raise TooLong
            return self.execute(asked)

        return drive(operation, execute)

    def execute(self, asked: Ask) -> Rows:
        """Carry one statement out."""
        query = self._queries[asked.name]
        rows = asked.rows
        if rows is not None:
            if len(rows) == 1:
                self.connection.execute(query.text, rows[0])
            else:
                self._execute_many(query, rows)
            return []
        params: Any = asked.params
        if asked.name == TAKE_OFFSETS:
            return [self._take_offsets(**params)]
        if query.wants_now:
            params = {**params, "now": self.now()}
            if asked.name == "now":
                return [(params["now"],)]
        return self.connection.execute(query.text, params).fetchall()

    def _execute_many(self, query: Query, rows: Sequence[Row]) -> None:
        execute, count, done = self.connection.execute, len(rows), 0
        if query.wide:
            while count - done >= WIDE:
                execute(query.wide, tuple(chain.from_iterable(rows[done : done + WIDE])))
                done += WIDE
        if count - done == 1:
            execute(query.text, rows[done])
        elif count > done:
            self.connection.executemany(query.text, rows[done:]).fetchall()

    def _take_offsets(self, topic: str, count: int, largest: int) -> Row:
        # A topic remembers its own newest time: one page less to write than the store's clock.
        # A fake time is used as it is and not remembered.
        self.touched.add(topic)
        clock = self._clock()
        if self._ms is None:
            self._ms = clock.now_ms()
        ms = self._ms
        if clock.is_fake:
            topic_id, head, _ = self._take(topic, count, largest, 0)
            return topic_id, head, ms
        if self._ticked and ms < self._floor:
            ms = self._floor
        if (known := self._topics.get(topic)) is not None:
            # The topic is still there unless another process wrote or this one rolled back. The
            # statement itself compares, so a stale memory changes nothing and is read again.
            topic_id, head, newest = known
            moved = (topic_id, head + count, ms if ms > newest else newest)
            bound = (moved[1], largest, moved[2], topic_id, topic, head, newest)
            self.connection.execute(self._move_head, bound)
            if self.connection.changes():
                self._topics[topic] = moved
                return moved
        if len(self._topics) >= MOST_TOPICS:
            self._topics.clear()
        taken = self._topics[topic] = self._take(topic, count, largest, ms)
        return taken

    def _take(self, topic: str, count: int, largest: int, ms: int) -> tuple[int, int, int]:
        text = self._queries[TAKE_OFFSETS].text
        rows: Any = self.connection.execute(text, (topic, count, largest, ms)).fetchall()
        return rows[0]  # type: ignore[no-any-return]

    def now(self) -> int:
        """Return the store's time: the clock's, but never behind what any process has seen.

        It stands still during an operation, so that all that it does happens at one moment.
        """
        clock = self._clock()
        if self._ms is None:
            self._ms = clock.now_ms()
        ms = self._ms
        if clock.is_fake:
            return ms
        if not self._ticked:
            self._ticked = True
            self._floor = max(self._floor, self._tick(ms))
        return max(ms, self._floor)

    def _tick(self, ms: int) -> int:
        if self._read_only:
            rows: Any = self.connection.execute(self._queries["read_clock"].text).fetchall()
            return int(rows[0][0]) if rows else 0
        text = self._queries["tick"].text
        rows = self.connection.execute(text, {"clock": ms}).fetchall()
        return int(rows[0][0])


def translated(error: BaseException, where: str) -> BaseException:
    """Return *error* as a `StorageError` that says what may help; others pass unchanged."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return _because(StorageBusy(f"{where} is locked by another process; try again"), error)
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        message = f"{where} is damaged ({error}); run `harn log verify`, restore a copy"
        return _because(StorageCorrupt(message), error)
    if isinstance(error, apsw.FullError):
        message = f"no room left for {where}; free some, and it continues by itself"
        return _because(StorageError(message), error)
    if isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError):
        return _because(StorageError(f"{where} cannot be written ({error})"), error)
    if isinstance(error, ODD_ROW) and where != MEMORY:
        message = f"{where} holds a row that cannot be read ({error}); run `harn log verify`"
        return _because(StorageCorrupt(message), error)
    if isinstance(error, apsw.Error | OSError):
        return _because(StorageError(f"{where}: {_what_to_do(error)}"), error)
    return error


def _because(ours: StorageError, cause: BaseException) -> StorageError:
    ours.__cause__ = cause
    return ours


def _what_to_do(error: BaseException) -> str:
    if isinstance(error, PermissionError):
        return (
            f"no permission ({error}); let this user write there, or choose another directory "
            "with state_dir, --state-dir or HARN_STATE_DIR"
        )
    return str(error)
