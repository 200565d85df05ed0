"""A consistent copy of an open SQLite store, also while it is written to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from harn.errors import StorageError
from harn.file_sync import sync_file
from harn.private_files import open_private, sync_dir
from harn.storage.queries import load_queries

PAGES = 256
"""Pages copied between two checks whether the copy is still wanted."""


def copy_database(source: apsw.Connection, target: Path, wanted: Callable[[], bool]) -> None:
    """Copy the present state of *source* to the new file *target*, with mode 0600, and sync it.

    The copy gets its name only when it is complete. If it is no longer *wanted*, or fails, no file
    remains.
    """
    if os.path.lexists(target):
        raise _exists(target)
    draft = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        handle = open_private(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    except OSError as error:
        raise StorageError(f"the copy {target} cannot be created: {error.strerror}") from error
    try:
        if _copy(source, draft, wanted):
            sync_file(handle)
            _give_name(draft, target)
    except (apsw.FullError, apsw.IOError, OSError) as error:
        raise StorageError(f"the copy {target} could not be written ({error})") from error
    finally:
        os.close(handle)
        draft.unlink(missing_ok=True)
    sync_dir(target.parent)


def _copy(source: apsw.Connection, draft: Path, wanted: Callable[[], bool]) -> bool:
    """Copy all pages inside one read transaction; return whether the copy is complete."""
    copy = apsw.Connection(str(draft))
    try:
        # No journal and no syncs: after a crash the unfinished file is of no use anyway.
        copy.execute("PRAGMA journal_mode = OFF").fetchall()
        copy.execute("PRAGMA synchronous = OFF").fetchall()
        source.execute("BEGIN")
        # BEGIN alone takes no snapshot; the first read does.
        source.execute(load_queries("sqlite")["has_versions"].text).fetchall()
        with copy.backup("main", source, "main") as under_way:
            while not under_way.done:
                if not wanted():
                    return False
                under_way.step(PAGES)
        # In WAL mode a reader of the copy would have to create two more files beside it.
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
    except OSError:  # a file system without hard links
        if os.path.lexists(target):
            raise _exists(target) from None
        os.rename(draft, target)


def _exists(target: Path) -> StorageError:
    return StorageError(f"{target} exists already; name a new file for the copy")
