"""memory://: the same statements on a private SQLite in memory, carried out at once.

There is no thread and no I/O; an operation runs on the loop between two awaits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from harn.clock import Clock
from harn.errors import StorageError
from harn.storage.contract import Durability, Hooks
from harn.storage.engines.sqlite_migration import migrate
from harn.storage.engines.sqlite_session import MEMORY, Session, translated
from harn.storage.operations import Recipe, changed_nothing

T = TypeVar("T")


class MemoryDriver:
    """An engine whose store ends with its runtime."""

    durability: Durability = "memory"
    at_once = 1
    runs_here = True
    tells_marks = False

    def __init__(self, clock: Callable[[], Clock], hooks: Hooks) -> None:
        self._hooks = hooks
        self._clock = clock
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._closed = False

    def submit(
        self,
        recipe: Recipe[T],
        *,
        write: bool = True,
        durability: Durability | None = None,
        into: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Carry the operation out at once; the future is done."""
        answer = asyncio.get_running_loop().create_future() if into is None else into
        try:
            answer.set_result(self.run_now(recipe, write=write))
        except Exception as error:
            answer.set_exception(error)
        return answer

    def run_now(self, recipe: Recipe[T], *, write: bool = True) -> T:
        """Carry the operation out at once."""
        result, touched = self._run(recipe, write)
        if touched:
            self._hooks.appended(frozenset(touched))
        return result

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry the operation out at once, as always."""
        return self.run_now(recipe)

    def run_on_thread(self, recipe: Recipe[T]) -> T:
        """Carry the operation out on another thread than the loop's; no reader is woken."""
        return self._run(recipe)[0]

    def _run(self, recipe: Recipe[T], write: bool = True) -> tuple[T, set[str]]:
        with self._lock:
            session = self._session or self._open()
            try:
                session.begin()
                result = session.drive(recipe())
                if write and not changed_nothing(result):
                    session.commit()
                else:
                    session.rollback()
            except BaseException as error:
                session.rollback()
                if (ours := translated(error, MEMORY)) is error:
                    raise
                raise ours from error
            return result, session.touched

    def watch(self, wanted: bool) -> None:
        """Do nothing: no other process can write here."""

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return None: a read here costs no more than a mark."""
        return None

    async def check(self) -> list[str]:
        """Find nothing: there are no pages to break."""
        return []

    async def aclose(self) -> None:
        """Forget everything."""
        self._closed = True
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _open(self) -> Session:
        if self._closed:
            raise StorageError("this store is closed")
        connection = apsw.Connection(":memory:", statementcachesize=200)
        migrate(connection, MEMORY)
        self._session = Session(connection, self._clock)
        return self._session
