"""SQLite, through apsw: one writer thread, and writes that meet commit together.

Operations that arrive while a commit is under way share the next transaction, each in its own
savepoint: one that fails fails alone, a COMMIT that fails fails all of them. Reads have a thread
and a connection of their own, so that a long page does not hold up a commit. WAL mode with
`synchronous=FULL`: what has been answered has been fsynced.

A brief operation whose commit is not synced may use the writer's connection on the loop's own
thread (`try_now`), while nothing is in its way. Everything slow stays with the writer: opening,
syncing, moving the WAL into the database, waiting for another process.

The thread opens the file when the first operation comes and again whenever something went wrong,
so a store heals by itself once the cause is gone.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw

from harn.clock import Clock, SystemClock
from harn.errors import StorageError
from harn.storage.contract import Durability, Hooks
from harn.storage.engines.inotify import FileWatch
from harn.storage.engines.sqlite.backup import copy_database
from harn.storage.engines.sqlite.open_files import Identity, hold, release
from harn.storage.engines.sqlite_session import Session, migrate, translated
from harn.storage.engines.sqlite_version import sqlite_version, wal_is_safe
from harn.storage.engines.store_thread import Handover, Request, StoreThread
from harn.storage.operations import Recipe, changed_nothing, nothing

T = TypeVar("T")

BUSY_MS = 5000
"""How long a writer waits for another process before it says `StorageBusy`."""
CHECKPOINT_PAGES = 1000
BRIEF = 8
"""Statements of an operation that may run on the loop's thread; a longer one starts over."""
GLANCES = 20
"""Looks at another process's lock before the loop's thread leaves it to the writer's."""
RESERVE = 1024 * 1024
"""Bytes by which the WAL is lengthened once SQLite has come to its end."""
RESERVE_AFTER = 8
"""Commits between two looks at its length; a short life needs none."""
MOST_RESERVED = 4 * RESERVE
"""No more than this: a checkpoint then begins it anew."""
WAL_BYTES = 32 * 1024 * 1024
VFS: str | None = None
"""The file layer below SQLite; a test puts one here that breaks on purpose."""
LOOK_AGAIN = 0.01
"""Seconds after which a writer looks which files are in place, not only whether there are any."""
SYNC_WITHIN = 1.0
"""Seconds after which commits of the weaker class are synced too."""
TOUCH = "PRAGMA user_version = 0"
"""Writes a page, changing nothing: a commit without one, or of equal rows, syncs nothing."""


class SqliteDriver:
    """One SQLite file, shared with whoever else opens it."""

    at_once = 1

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
        self.runs_here = durability == "normal"
        self.path = path
        self._handover = Handover(clock, hooks)
        self._writer = _Writer(path, clock, self._handover, busy_ms)
        self._reader = _Reader(path, clock, self._handover, busy_ms)
        self._copier = _Copier(path, clock, self._handover, busy_ms)
        self._watch = FileWatch(lambda: [Path(f"{path}-wal")], clock, hooks.hinted)
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
        """Carry the operation out on this thread, if its commit needs no sync and nobody writes."""
        self._check_open()
        return self._writer.try_now(recipe) if self.runs_here else None

    def watch(self, wanted: bool) -> None:
        """Hint when the WAL file changes under us."""
        self._watch.switch(wanted)

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
        self._handover.close()

    def _check_open(self) -> None:
        if self._forked:
            raise StorageError(
                f"{self.path} was opened before a fork and cannot be used in the child; "
                "open a Runtime of its own there"
            )
        if self._closed:
            raise StorageError(f"{self.path} is closed")


class _Thread(StoreThread):
    """A thread with, while all is well, a session."""

    role = "writer"
    read_only = False
    look_every = 0.0

    def __init__(
        self, path: Path, clock: Callable[[], Clock], handover: Handover, busy_ms: int
    ) -> None:
        super().__init__(f"harn-sqlite-{self.role}", handover)
        self.path = path
        self.session: Session | None = None
        self._held: Identity | None = None
        self._clock = clock
        self._patience = _Patience(busy_ms)
        self._files: list[tuple[int, int]] = []
        self._wal = f"{path}-wal"
        self._look_at = 0.0

    def _ready(self) -> Session:
        """Return the session, opened anew if files were moved away under it."""
        if self.session is not None and not self._is_in_place():
            self._rescue()
        if self.session is None:
            self.session = self._open()
            self._files = self._identity()
        return self.session

    def _is_in_place(self) -> bool:
        """Tell whether the files are still those that we opened; now and then, look closely."""
        now = SystemClock.monotonic()
        if now < self._look_at and os.access(self._wal, os.F_OK):
            return True
        self._look_at = now + self.look_every
        return self._files == self._identity()

    def _open(self) -> Session:
        self._held = hold(self.path)
        try:
            return self._connect()
        except BaseException:
            self._release()
            raise

    def _connect(self) -> Session:
        connection = apsw.Connection(str(self.path), vfs=VFS, statementcachesize=200)
        try:
            connection.set_busy_handler(self._patience)
            _switch_to_wal(connection, self._patience)
            for pragma in (
                "synchronous = FULL",
                f"journal_size_limit = {WAL_BYTES}",
                "cache_size = -16000",
                "temp_store = MEMORY",
            ):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            migrate(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
        return Session(connection, self._clock, read_only=self.read_only)

    def _identity(self) -> list[tuple[int, int]]:
        found = []
        for name in (self.path, self._wal):
            try:
                seen = os.stat(name)
                found.append((seen.st_dev, seen.st_ino))
            except FileNotFoundError:
                found.append((0, 0))
        return found

    def _rescue(self) -> None:
        # Somebody removed the WAL file: what is in it is still in our hands, so move it into
        # the database before the handle goes.
        if self.session is not None and not self.read_only:
            try:
                self.session.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error:
                pass
        self.let_go()

    def let_go(self) -> None:
        """Close the file."""
        session, self.session = self.session, None
        if session is not None:
            try:
                session.connection.close()
            except apsw.Error:
                pass
        self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            release(held)

    def _failed(self, error: BaseException) -> BaseException:
        """Translate *error*; after one that may have hurt the handle, open a new one."""
        if not isinstance(error, apsw.BusyError | apsw.LockedError | apsw.ConstraintError):
            self.let_go()
        return translated(error, str(self.path))


def _switch_to_wal(connection: apsw.Connection, patience: _Patience) -> None:
    """Turn WAL on, waiting for whoever does the same: here SQLite does not ask the handler."""
    tries = 0
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if not patience(tries):
                raise
            tries += 1


class _Writer(_Thread):
    """The one connection that writes, used by its thread or, for what is brief, by the loop's."""

    look_every = LOOK_AGAIN
    _unsynced = False
    _sync_by = 0.0
    _full = True
    _commits = 0
    _reserved = 0
    _moved = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turn = threading.Lock()
        """Held by the thread that uses the connection."""

    def _open(self) -> Session:
        self._full = True
        self._commits = self._reserved = self._moved = 0
        session = super()._open()
        session.connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()  # see `_checkpoint`
        return session

    @property
    def _wal_pages(self) -> int:
        """How many pages we have written into the WAL since we last moved it.

        Asked for, not told by a hook: that would wait for the interpreter's lock in each commit.
        """
        return self._written() - self._moved

    def _written(self) -> int:
        assert self.session is not None
        return self.session.connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]

    def patience(self) -> float | None:
        """Sync commits of the weaker class before a second has passed."""
        return max(0.0, self._sync_by - SystemClock.monotonic()) if self._unsynced else None

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry the operation out on the caller's thread, unless something slow is in the way.

        None means that nothing has happened; the writer's own thread may wait, and heal, and say
        what is wrong.
        """
        if not self._turn.acquire(blocking=False):
            return None
        try:
            return self._commit_now(recipe) if self._would_not_wait() else None
        finally:
            self._turn.release()

    def _would_not_wait(self) -> bool:
        """Tell whether the next commit meets no opening, no sync, no checkpoint and no queue."""
        return (
            self.session is not None
            and self._unsynced  # so the thread has been told to wake and sync
            and not self._full
            and self._sync_by > SystemClock.monotonic()
            and self._wal_pages < CHECKPOINT_PAGES
            and self._inbox.empty()
            and self._is_in_place()
        )

    def _commit_now(self, recipe: Recipe[T]) -> T | None:
        session = self.session
        assert session is not None
        self._patience.waits = False
        try:
            session.begin()
            result = session.drive_briefly(recipe(), BRIEF)
            session.commit()
            return result
        except Exception:
            self._undo()
            return None
        except BaseException:
            self._undo()
            raise
        finally:
            self._patience.waits = True

    def carry_out(self, batch: list[Request]) -> None:
        """Carry *batch* out in one transaction."""
        with self._turn:
            self._carry_out(batch)

    def _carry_out(self, batch: list[Request]) -> None:
        wanted = [request for request in batch if request.wanted]
        if not wanted:
            return
        try:
            session = self._ready()
            self._checkpoint(session)
            full = self._is_due() or any(request.durability == "full" for request in wanted)
            self._choose_class(session, full)
            session.begin()
            self._reserve()
            for request in wanted:
                self._carry_out_one(session, request, alone=len(wanted) == 1)
            if all(changed_nothing(request.result) for request in wanted):
                session.rollback()
                return
            if full and self._unsynced:
                session.connection.execute(TOUCH)
            session.commit()
            self._note_unsynced(not full)
        except BaseException as error:
            self._undo()
            ours = self._failed(error)
            for request in wanted:
                if request.error is None:
                    request.error = ours

    def _checkpoint(self, session: Session) -> None:
        """Move a long WAL into the database, so that the next transaction begins it anew."""
        if self._wal_pages >= CHECKPOINT_PAGES:
            try:
                session.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                self._moved = self._written()
            except apsw.Error:
                pass  # the WAL is as good as before, and the next transaction tries again

    def _is_due(self) -> bool:
        return self._unsynced and self._sync_by <= SystemClock.monotonic()

    def _note_unsynced(self, unsynced: bool) -> None:
        if unsynced and not self._unsynced:
            self._sync_by = SystemClock.monotonic() + SYNC_WITHIN
        self._unsynced = unsynced

    def _reserve(self) -> None:
        """Keep the WAL's blocks allocated ahead of its end; call with the write lock held.

        A sync of a file that has grown commits the file system's journal as well and takes twice
        as long. What SQLite has not written is zeros to it, no frame, and of no meaning; nobody
        else can write or cut the file while we hold the lock.
        """
        self._commits += 1
        if self._commits % RESERVE_AFTER or VFS is not None:
            return
        try:
            size = os.stat(self._wal).st_size
            if self._reserved < size < MOST_RESERVED:
                with open(self._wal, "r+b", buffering=0) as wal:
                    wal.seek(size)
                    wal.write(bytes(RESERVE))
                self._reserved = size + RESERVE
        except OSError:
            self._reserved = MOST_RESERVED  # it would only have been faster

    def _choose_class(self, session: Session, full: bool) -> None:
        if full is not self._full:
            session.connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._full = full

    def _carry_out_one(self, session: Session, request: Request, *, alone: bool) -> None:
        execute = session.connection.execute
        if not alone:
            execute("SAVEPOINT one")
        try:
            request.result = session.drive(request.recipe())
            request.touched = session.touched
        except BaseException as error:
            request.error = translated(error, str(self.path))
            if not session.connection.in_transaction:
                raise  # SQLite itself has undone the whole transaction
            execute("ROLLBACK" if alone else "ROLLBACK TO one")
            if alone:
                execute("BEGIN")
                return
        if not alone:
            execute("RELEASE one")

    def _undo(self) -> None:
        if self.session is not None:
            try:
                self.session.rollback()
            except apsw.Error:
                self.let_go()

    def idle(self) -> None:
        """Commit something tiny the strong way, which syncs all that came before it."""
        with self._turn:
            self._sync()

    def _sync(self) -> None:
        if self._unsynced and self.session is not None:
            try:
                self._choose_class(self.session, True)
                self.session.begin()
                self.session.now()
                self.session.connection.execute(TOUCH)
                self.session.commit()
            except apsw.Error as error:
                self._undo()
                self._failed(error)
        self._unsynced = False


class _Reader(_Thread):
    role = "reader"
    read_only = True
    group = 1

    def put_check(self, request: Request) -> None:
        """Ask for a look at every page, instead of an operation."""
        request.touched = set()
        self._checks.add(request)
        self.put(request)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._checks: set[Request] = set()

    def carry_out(self, batch: list[Request]) -> None:
        """Carry one request out in a transaction that sees one moment."""
        [request] = batch
        if not request.wanted:
            return
        try:
            session = self._ready()
            if request in self._checks:
                self._checks.discard(request)
                request.result = _broken_pages(session)
                return
            session.begin()
            try:
                request.result = session.drive(request.recipe())
            finally:
                session.rollback()
        except BaseException as error:
            request.error = self._failed(error)


class _Copier(_Thread):
    """A connection for copies alone, so that a long one holds up neither reads nor commits."""

    role = "copier"
    read_only = True
    group = 1

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._targets: dict[Request, Path] = {}

    def put_copy(self, request: Request, target: Path) -> None:
        """Ask for a copy at *target*, instead of an operation."""
        self._targets[request] = target
        self.put(request)

    def carry_out(self, batch: list[Request]) -> None:
        """Make one copy, unless its caller gives it up before it is complete."""
        [request] = batch
        target = self._targets.pop(request)
        try:
            if request.wanted:
                copy_database(self._ready().connection, target, lambda: request.wanted)
        except BaseException as error:
            request.error = self._failed(error)
        self.let_go()


def _broken_pages(session: Session) -> list[str]:
    try:
        rows = session.connection.execute("PRAGMA integrity_check").fetchall()
    except apsw.CorruptError as error:
        return [str(error)]
    return [str(text) for (text,) in rows if text != "ok"]


class _Patience:
    """A busy handler that looks again soon, then less often, then gives up."""

    waits = True
    """Whether to sleep. If not, only look a few times: most transactions end in microseconds."""

    def __init__(self, busy_ms: int) -> None:
        self._busy_ms = busy_ms
        self._pause = threading.Event()
        self._waited = 0.0

    def __call__(self, tries: int) -> bool:
        if not self.waits:
            _let_others_run()
            return tries < GLANCES
        if tries == 0:
            self._waited = 0.0
        pause = min(0.5 + tries * 0.5, 20.0)
        if self._waited + pause > self._busy_ms:
            return False
        self._waited += pause
        self._pause.wait(pause / 1000)
        return True


_let_others_run = getattr(os, "sched_yield", lambda: None)
_drivers: weakref.WeakSet[SqliteDriver] = weakref.WeakSet()
_left_behind: list[object] = []


def _poison_after_fork() -> None:
    # The child must neither use nor close these handles: closing would checkpoint and remove
    # files that the parent is writing. So it keeps them, unused, for ever.
    for driver in list(_drivers):
        driver._forked = True
        _left_behind.append((driver, driver._writer.session, driver._reader.session))
        _left_behind.append(driver._copier.session)


os.register_at_fork(after_in_child=_poison_after_fork)
