"""The connections that only read a SQLite store: one for reads and checks, one for copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from harn.storage.engines.sqlite.backup import copy_database
from harn.storage.engines.sqlite.connection_thread import ConnectionThread
from harn.storage.engines.sqlite_session import Session
from harn.storage.engines.store_thread import Request


class Reader(ConnectionThread):
    """A connection for reads, so that a long one does not hold up a commit."""

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


class Copier(ConnectionThread):
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
