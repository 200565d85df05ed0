"""The connection that writes to a SQLite store: batches, syncs, and the length of the WAL.

Its thread carries out all that may be slow: opening, syncing, moving the WAL into the database,
waiting for another process. A brief operation whose commit is not synced may use the connection on
the event loop's thread (`try_now`), while nothing is in its way.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import apsw

from harn.clock import SystemClock
from harn.storage.engines.file_watch import own_write
from harn.storage.engines.sqlite import connection_thread
from harn.storage.engines.sqlite.connection_thread import ConnectionThread
from harn.storage.engines.sqlite_session import Session, translated
from harn.storage.engines.store_thread import Request
from harn.storage.operations import Recipe, changed_nothing

T = TypeVar("T")

CHECKPOINT_PAGES = 1000
"""Pages in the WAL at which it is moved into the database."""
BRIEF = 8
"""Statements of an operation that may run on the event loop's thread; a longer one starts over."""
RESERVE = 1024 * 1024
"""Bytes by which the WAL is lengthened once SQLite has come to its end."""
RESERVE_AFTER = 8
"""Commits between two looks at its length; a short life needs none."""
MOST_RESERVED = 4 * RESERVE
"""No more than this: after a checkpoint SQLite writes from its beginning again."""
RECHECK_FILES_AFTER = 0.01
"""Seconds after which a writer looks which files are in place, not only whether there are any."""
SYNC_WITHIN = 1.0
"""Seconds after which commits of the weaker class are synced too."""
TOUCH = "PRAGMA user_version = 0"
"""Writes a page, changing nothing: a commit without one, or of equal rows, syncs nothing."""


class Writer(ConnectionThread):
    """The connection that writes, used by its thread or, for what is brief, by the event loop's."""

    look_every = RECHECK_FILES_AFTER
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
        """How many pages were written into the WAL since it was last moved.

        Asked for, not told by a hook: that would wait for the interpreter's lock in each commit.
        """
        assert self.session is not None
        return self.session.connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0] - self._moved

    def patience(self) -> float | None:
        """Sync commits of the weaker class before a second has passed."""
        return max(0.0, self._sync_by - SystemClock.monotonic()) if self._unsynced else None

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry the operation out on the caller's thread, unless something slow is in the way.

        None means that nothing has happened. The writer's own thread may wait, open the file again,
        and say what is wrong.
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
        self._busy.waits = False
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
            self._busy.waits = True

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
            if self._wal_pages >= CHECKPOINT_PAGES:
                self._checkpoint(session)
            classes = {request.durability for request in wanted}
            full = "full" in classes or self._is_due()
            self._choose_class(session, full)
            session.begin()
            self._commits += 1
            if not self._commits % RESERVE_AFTER:
                self._reserve()
            is_news = has_changed = False
            for request in wanted:
                self._carry_out_one(session, request, alone=len(wanted) == 1)
                is_news = is_news or bool(request.touched)
                has_changed = has_changed or not changed_nothing(request.result)
            if not has_changed:
                session.rollback()
                return
            if full and self._unsynced:
                session.connection.execute(TOUCH)
            with own_write(self._wal, self if is_news else None):
                session.commit()
            if full or "normal" in classes:
                self._note_unsynced(not full)
        except BaseException as error:
            self._undo()
            ours = self._failed(error)
            for request in wanted:
                if request.error is None:
                    request.error = ours

    def _checkpoint(self, session: Session) -> None:
        """Move a long WAL into the database; the next transaction writes from its beginning."""
        try:
            session.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._moved += self._wal_pages
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
        as long. SQLite takes zeros for no frame, so they mean nothing to it; no other process
        can write or cut the file while this one holds the lock.
        """
        if connection_thread.VFS is not None:
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
                with own_write(self._wal):
                    self.session.commit()
            except apsw.Error as error:
                self._undo()
                self._failed(error)
        self._unsynced = False
