"""Folding one record into an index, so that a record which cannot be folded harms only itself."""

from __future__ import annotations

import apsw

from harn.errors import StorageCorrupt
from harn.storage.contract import Event
from harn.storage.engines.sqlite_session import ODD_ROW, Session
from harn.storage.indexes import Index

_REFUSED = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.SQLError)
"""Errors of SQLite that are about the values in a statement, not about memory or a disk."""
UNFOLDABLE = (StorageCorrupt, ValueError, LookupError, ArithmeticError, *_REFUSED, *ODD_ROW)
"""What a fold raises on a record of the wrong fields, or with values that no table accepts."""


def fold_record(session: Session, index: Index, event: Event) -> str | None:
    """Fold *event*; return the reason if it cannot be folded, and then nothing has changed."""
    session.connection.execute("SAVEPOINT record")
    try:
        session.drive(index.fold(event))
        return None
    except UNFOLDABLE as error:
        session.connection.execute("ROLLBACK TO record")
        return f"{type(error).__name__}: {error}"
    finally:
        session.connection.execute("RELEASE record")
