"""A thread of a SQLite store with a connection of its own, opened again whenever it must be."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from harn.clock import Clock, SystemClock
from harn.storage.engines.sqlite.open_files import Identity, hold, release
from harn.storage.engines.sqlite_migration import migrate
from harn.storage.engines.sqlite_session import Session, translated
from harn.storage.engines.store_thread import Handover, StoreThread

BUSY_MS = 5000
"""How long a writer waits for another process before it says `StorageBusy`."""
LOOKS_AT_A_LOCK = 20
"""Looks at another process's lock before the event loop's thread leaves it to the writer's."""
WAL_BYTES = 32 * 1024 * 1024
"""The length to which SQLite cuts a WAL that was moved into the database."""
VFS: str | None = None
"""The file layer below SQLite; a test puts one here that breaks on purpose."""


class ConnectionThread(StoreThread):
    """A thread that has an open session, unless opening it failed or it was closed."""

    role = "writer"
    read_only = False
    look_every: float = 0.0

    def __init__(
        self, path: Path, clock: Callable[[], Clock], handover: Handover, busy_ms: int
    ) -> None:
        super().__init__(f"harn-sqlite-{self.role}", handover)
        self.path = path
        self.session: Session | None = None
        self._held: Identity | None = None
        self._clock = clock
        self._busy = BusyHandler(busy_ms)
        self._files: list[tuple[int, int]] = []
        self._wal = f"{path}-wal"
        self._look_at = 0.0

    def _ready(self) -> Session:
        """Return the session, opened again if its files were moved away."""
        if self.session is not None and not self._is_in_place():
            self._rescue()
        if self.session is None:
            self.session = self._open()
            self._files = self._identity()
        return self.session

    def _is_in_place(self) -> bool:
        """Tell whether the files are still those that were opened; now and then, look closely."""
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
            connection.set_busy_handler(self._busy)
            _switch_to_wal(connection, self._busy)
            for pragma in (
                "synchronous = FULL",
                "fullfsync = ON",  # macOS: until the drive has it; it means nothing elsewhere
                "checkpoint_fullfsync = ON",
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
        # The WAL file was removed. The open handle still has what is in it, so move that into
        # the database before the handle is closed.
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


def _switch_to_wal(connection: apsw.Connection, busy: BusyHandler) -> None:
    """Turn WAL on, waiting while another process does the same.

    SQLite does not ask the busy handler here.
    """
    tries = 0
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except apsw.BusyError:
            if not busy(tries):
                raise
            tries += 1


class BusyHandler:
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
            return tries < LOOKS_AT_A_LOCK
        if tries == 0:
            self._waited = 0.0
        pause = min(0.5 + tries * 0.5, 20.0)
        if self._waited + pause > self._busy_ms:
            return False
        self._waited += pause
        self._pause.wait(pause / 1000)
        return True


_let_others_run = getattr(os, "sched_yield", lambda: None)
