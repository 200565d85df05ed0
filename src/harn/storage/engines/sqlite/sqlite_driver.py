"""SQLite, through apsw: one writer thread, and writes that meet commit together.

Operations that arrive while a commit is under way share the next transaction, each in its own
savepoint: one that fails fails alone, a COMMIT that fails fails all of them. Reads have a thread
and a connection of their own, so that a long page does not hold up a commit. WAL mode with
`synchronous=FULL`: what has been answered has been fsynced.

The thread opens the file when the first operation comes and again whenever something went wrong,
so a store heals by itself once the cause is gone.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from harn.clock import Clock
from harn.errors import StorageError
from harn.storage.contract import Durability, Hooks
from harn.storage.engines.file_watch import FileWatch, forget_writes, settled_look
from harn.storage.engines.sqlite.connection_thread import BUSY_MS
from harn.storage.engines.sqlite.reader_threads import Copier, Reader
from harn.storage.engines.sqlite.writer_thread import Writer
from harn.storage.engines.sqlite_version import sqlite_version, wal_is_safe
from harn.storage.engines.store_thread import Handover
from harn.storage.operations import Recipe, nothing

T = TypeVar("T")


class SqliteDriver:
    """One SQLite file, shared with every process that opens it."""

    at_once = 1
    tells_marks = False

    def __init__(
        self,
        path: Path,
        clock: Callable[[], Clock],
        hooks: Hooks,
        *,
        durability: Durability = "full",
        busy_ms: int = BUSY_MS,
    ) -> None:
        if not wal_is_safe(sqlite_version()):
            raise StorageError(
                f"SQLite {apsw.sqlite_lib_version()} may corrupt a WAL file; "
                "install apsw 3.51.3 or newer"
            )
        self.durability: Durability = durability
        self.runs_here: bool = durability == "normal"
        self.path = path
        self._handover = Handover(clock, hooks)
        self._writer = Writer(path, clock, self._handover, busy_ms)
        self._reader = Reader(path, clock, self._handover, busy_ms)
        self._copier = Copier(path, clock, self._handover, busy_ms)
        self._wal = Path(f"{path}-wal")
        self._watch = FileWatch(self._wal, clock, hooks.hinted, self._writer, hooks.awaits_hints)
        self._closed = False
        self._forked = False
        _drivers.add(self)

    def submit(
        self,
        recipe: Recipe[T],
        *,
        write: bool = True,
        durability: Durability | None = None,
        into: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Hand the operation to the writer's, or without *write* the reader's, thread."""
        self._check_open()
        request = self._handover.request(recipe, durability or self.durability, into)
        (self._writer if write else self._reader).put(request)
        return request.future

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry the operation out on this thread, if its commit needs no sync now."""
        self._check_open()
        return self._writer.try_now(recipe) if self.runs_here else None

    def watch(self, wanted: bool) -> None:
        """Hint when the WAL file changes."""
        self._watch.switch(wanted)

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return the WAL file's size and time, once these tell of every later write."""
        return settled_look(self._wal)

    async def check(self) -> list[str]:
        """Let SQLite look at every page and index."""
        self._check_open()
        request = self._handover.request(nothing, "full")
        self._reader.put_check(request)
        return await request.future  # type: ignore[no-any-return]

    async def backup(self, target: Path) -> None:
        """Copy the store as it is now to the new file *target*, while it is in use."""
        self._check_open()
        request = self._handover.request(nothing, "full")
        self._copier.put_copy(request, target)
        await request.future

    async def aclose(self) -> None:
        """Finish what was handed over, then close the file."""
        if self._closed or self._forked:
            return
        self._closed = True
        self._watch.switch(False)
        for part in (self._copier, self._reader, self._writer):
            await part.aclose()
        forget_writes(str(self._wal), self._writer)
        self._handover.close()

    def _check_open(self) -> None:
        if self._forked:
            raise StorageError(
                f"{self.path} was opened before a fork and cannot be used in the child; "
                "open a Runtime of its own there"
            )
        if self._closed:
            raise StorageError(f"{self.path} is closed")


_drivers: weakref.WeakSet[SqliteDriver] = weakref.WeakSet()
_left_behind: list[object] = []


def _poison_after_fork() -> None:
    # The child must neither use nor close these handles: closing would checkpoint and remove
    # files that the parent is writing. So it keeps them, unused, forever.
    for driver in list(_drivers):
        driver._forked = True
        _left_behind.append((driver, driver._writer.session, driver._reader.session))
        _left_behind.append(driver._copier.session)


os.register_at_fork(after_in_child=_poison_after_fork)
