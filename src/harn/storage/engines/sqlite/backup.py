"""A copy of an open SQLite store: one moment of it, whatever is written meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from harn.errors import StorageError
from harn.private_files import open_private, sync_dir
from harn.storage.queries import load_queries

PAGES = 256
"""Pages copied between two looks at whether the copy is still wanted."""


def copy_database(source: apsw.Connection, target: Path, wanted: Callable[[], bool]) -> None:
    """Copy what *source* sees now to the new file *target*, 0600 and synced.

    The copy has its name only once it is complete. One that is no longer *wanted* leaves nothing.
    """
    if os.path.lexists(target):
        raise _exists(target)
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        handle = open_private(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    except OSError as error:
        raise StorageError(f"no copy can be written to {target}: {error.strerror}") from error
    try:
        if _copy(source, draft, wanted):
            os.fsync(handle)
            _give_name(draft, target)
    except (apsw.FullError, apsw.IOError, OSError) as error:
        raise StorageError(f"the copy {target} could not be written ({error})") from error
    finally:
        os.close(handle)
        draft.unlink(missing_ok=True)
    sync_dir(target.parent)


def _copy(source: apsw.Connection, draft: Path, wanted: Callable[[], bool]) -> bool:
    """Copy page by page inside one reading transaction; return whether it came to the end."""
    copy = apsw.Connection(str(draft))
    try:
        # The file has no name that is looked for yet: it needs no journal to be rolled back from.
        copy.execute("PRAGMA journal_mode = OFF").fetchall()
        copy.execute("PRAGMA synchronous = OFF").fetchall()
        source.execute("BEGIN")
        source.execute(
            load_queries("sqlite")["has_versions"].text
        ).fetchall()  # this moment, no other
        with copy.backup("main", source, "main") as under_way:
            while not under_way.done:
                if not wanted():
                    return False
                under_way.step(PAGES)
        # A copy is one file: in WAL mode a reader would need to write beside it.
        copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        return True
    finally:
        if source.in_transaction:
            source.execute("ROLLBACK")
        copy.close()


def _give_name(draft: Path, target: Path) -> None:
    try:
        os.link(draft, target)
    except FileExistsError:
        raise _exists(target) from None
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise _exists(target) from None
        os.rename(draft, target)


def _exists(target: Path) -> StorageError:
    return StorageError(f"{target} exists already; name a new file for the copy")
