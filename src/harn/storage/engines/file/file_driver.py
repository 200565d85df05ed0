"""Plain files: one JSONL a topic under a lock, and indexes folded from them in memory.

The log's own statements are carried out by `FileLog`; every other one runs on a private SQLite in
memory, which is updated from the topics' files whenever another process has written.
One thread does all of it; operations that meet share one commit, one sync, one hold of the lock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from harn.clock import Clock, SystemClock
from harn.errors import StorageCorrupt, StorageError
from harn.storage.codec import decode
from harn.storage.contract import TAKE_OFFSETS, Durability, Event, Hooks
from harn.storage.engines.file.file_log import FileLog
from harn.storage.engines.file.topic_file import RecordLine
from harn.storage.engines.file_watch import FileWatch
from harn.storage.engines.fold_record import fold_record
from harn.storage.engines.sqlite_migration import migrate
from harn.storage.engines.sqlite_session import Session, translated
from harn.storage.engines.store_thread import Handover, Request, StoreThread
from harn.storage.indexes import all_indexes
from harn.storage.operations import Ask, Operation, Recipe, Rows, ask, drive
from harn.storage.url import StoreUrl

logger: logging.Logger = logging.getLogger("harn.storage")

T = TypeVar("T")

SYNC_WITHIN = 1.0
"""Seconds after which commits of the weaker class are synced too."""


class FileDriver:
    """A directory of topic files, shared with every process that opens it."""

    at_once = 1
    runs_here = False
    tells_marks = False

    def __init__(self, place: StoreUrl, clock: Callable[[], Clock], hooks: Hooks) -> None:
        self.path: Path = place.path
        self.durability: Durability = place.durability
        self._handover = Handover(clock, hooks)
        log = FileLog(self.path, clock, place.busy_ms, read_only=place.is_read_only)
        self._worker = _Worker(log, clock, self._handover)
        self._watch = FileWatch(self.path, clock, hooks.hinted, awaits=hooks.awaits_hints)
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
        """Hand the operation to the directory's thread."""
        if self._forked:
            raise StorageError(f"{self.path} was opened before a fork; open a new Runtime there")
        if self._closed:
            raise StorageError(f"{self.path} is closed")
        request = self._handover.request(recipe, durability or self.durability, into)
        self._worker.put(request)
        return request.future

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry nothing out: every commit is written to a file and synced."""
        return None

    def watch(self, wanted: bool) -> None:
        """Hint when the commit journal changes."""
        self._watch.switch(wanted)

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return None: only a read can tell."""
        return None

    async def check(self) -> list[str]:
        """Look at the journal and at what was set aside; reading looks at each record."""
        return [text for (text,) in await self.submit(_check_files, write=False)]

    async def aclose(self) -> None:
        """Finish what was handed over, then close the files."""
        if self._closed or self._forked:
            return
        self._closed = True
        self._watch.switch(False)
        await self._worker.aclose()
        self._handover.close()


class _Worker(StoreThread):
    def __init__(self, log: FileLog, clock: Callable[[], Clock], handover: Handover) -> None:
        super().__init__("harn-file", handover)
        self._log = log
        self._clock = clock
        self._private: Session | None = None
        self._folded: dict[str, int] = {}
        self._in_private = False
        self._unsynced = False
        self._sync_by = 0.0
        self._touched: set[str] = set()
        self._rewriting: list[Request] = []

    def carry_out(self, batch: list[Request]) -> None:
        """Carry *batch* out under one hold of the lock."""
        wanted = [request for request in batch if request.wanted]
        if not wanted:
            return
        self._rewriting = []
        try:
            self._log.begin()
            try:
                for request in wanted:
                    self._carry_out_one(request)
                self._commit(wanted)
                self._settle_private(wanted)
                self._trim()
            finally:
                self._log.release()
        except BaseException as error:
            self._undo()
            ours = translated(error, str(self._log.directory))
            for request in wanted:
                request.error = request.error or ours

    def _commit(self, wanted: list[Request]) -> None:
        full = self._is_due() or any(request.durability == "full" for request in wanted)
        wrote = self._log.commit(sync=full)
        if full and self._unsynced and not wrote:
            self._log.sync()
        if not full and not self._unsynced:
            self._sync_by = SystemClock.monotonic() + SYNC_WITHIN
        self._unsynced = not full

    def _trim(self) -> None:
        rewriting, self._rewriting = self._rewriting, []
        try:
            if rewriting:
                self._log.commit_trims()
        except OSError as error:
            for request in rewriting:
                request.error = translated(error, str(self._log.directory))

    def _is_due(self) -> bool:
        return self._unsynced and self._sync_by <= SystemClock.monotonic()

    def patience(self) -> float | None:
        """Sync commits of the weaker class before a second has passed, pause or none."""
        return max(0.0, self._sync_by - SystemClock.monotonic()) if self._unsynced else None

    def idle(self) -> None:
        """Sync them."""
        if self._unsynced:
            self._unsynced = False
            try:
                self._log.sync()
            except OSError as error:
                logger.warning("%s: could not be synced: %s", self._log.directory, error)

    def let_go(self) -> None:
        """Close the files."""
        self._log.close()
        if self._private is not None:
            self._private.connection.close()

    def _carry_out_one(self, request: Request) -> None:
        before = self._log.statements.staged.copy()
        self._touched = set()
        if self._in_private:
            self._session().connection.execute("SAVEPOINT one")
        fresh = not self._in_private
        try:
            request.result = drive(request.recipe(), self._execute)
            request.touched = self._touched
            if self._log.statements.staged.rewrites(before):
                self._rewriting.append(request)
        except BaseException as error:
            request.error = translated(error, str(self._log.directory))
            self._log.statements.staged = before
            if self._in_private:
                undo = "ROLLBACK" if fresh else "ROLLBACK TO one"
                self._session().connection.execute(undo)
                self._in_private = not fresh

    def _execute(self, asked: Ask) -> Rows:
        if asked.name == TAKE_OFFSETS:
            self._touched.add(asked.params["topic"])
        rows = self._log.execute(asked)
        if rows is not None:
            return rows
        if not self._in_private:
            self._fold()
            self._session().begin()
            self._in_private = True
        return self._session().execute(asked)

    def _session(self) -> Session:
        if self._private is None:
            connection = apsw.Connection(":memory:", statementcachesize=200)
            migrate(connection, "the index in memory")
            self._private = _Timed(connection, self._clock, self._log)
        return self._private

    def _fold(self) -> None:
        """Bring the private index up to date with what other processes wrote."""
        grown, self._log.grown = self._log.grown, set()
        names = self._log.statements.names() if grown is None else grown
        session = self._session()
        wanted = {
            topic: self._folded.get(topic, 0)
            for topic in names
            if any(index.wants(topic) for index in all_indexes())
        }
        if not wanted:
            return
        folded: dict[str, int] = {}
        session.begin()
        try:
            for topic, line in self._log.in_order(wanted):
                self._fold_line(session, topic, line)
                folded[topic] = line.id
            session.commit()
        except BaseException:
            session.rollback()
            self._log.grown = grown  # the next operation folds them
            raise
        self._folded |= folded

    def _fold_line(self, session: Session, topic: str, line: RecordLine) -> None:
        try:
            payload, headers = decode(line.payload), decode(line.headers)
        except StorageCorrupt as error:  # its checksum is right, but it is not JSON
            self._warn_of(topic, line, str(error))
            return
        event = Event(line.id, topic, line.kind, payload, headers, line.at)
        for index in all_indexes():
            if index.wants(topic) and (reason := fold_record(session, index, event)) is not None:
                self._warn_of(topic, line, reason)

    def _warn_of(self, topic: str, line: RecordLine, reason: str) -> None:
        logger.warning(
            "%s: record %d of %s cannot be folded, so no index contains it: %s",
            *(self._log.directory, line.id, topic, reason),
        )

    def _settle_private(self, requests: list[Request]) -> None:
        for request in requests:
            for topic in request.touched or ():
                self._folded[topic] = self._log.statements.head(topic)
        if self._in_private:
            self._session().commit()
            self._in_private = False

    def _forget_private(self) -> None:
        if self._private is not None:
            self._private.connection.close()
        self._private, self._folded, self._in_private = None, {}, False

    def _undo(self) -> None:
        # What the private index holds may not be what the files say: fold it again.
        self._forget_private()
        self._log.grown = None


class _Timed(Session):
    """A private session whose time is the directory's."""

    def __init__(
        self, connection: apsw.Connection, clock: Callable[[], Clock], log: FileLog
    ) -> None:
        super().__init__(connection, clock)
        self._log = log

    def now(self) -> int:
        """Return the directory's time."""
        return self._log.now()


def _check_files() -> Operation[Rows]:
    return (yield ask("check_files"))


_drivers: weakref.WeakSet[FileDriver] = weakref.WeakSet()
_left_behind: list[Any] = []


def _poison_after_fork() -> None:
    for driver in list(_drivers):
        driver._forked = True
        _left_behind.append(driver)


os.register_at_fork(after_in_child=_poison_after_fork)
