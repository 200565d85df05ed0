"""The engines: four ways to carry an operation out, each behind the same `Driver`.

    sqlite/              sqlite://: one database file
    postgres/            postgresql://: one schema of a server
    file/                file://: a directory of JSONL files
    memory/              memory://: ends with its runtime

    open_engine.py       from a URL to its engine
    store_thread.py      a thread with an inbox, and what brings its answers back to the event loop
    sqlite_migration.py  the tables in SQLite are made and upgraded
    sqlite_session.py    one SQLite connection and the operations that run on it
    fold_record.py       folds one record into an index, if it can be folded
    sqlite_version.py    which SQLite this is, and whether its WAL can be trusted
    file_watch.py        hints that another process changed a file
    loop_wakeup.py       how a thread wakes the event loop

An engine imports what stands beside the folders, never another engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.engines.fold_record import fold_record
    from harn.storage.engines.memory import MemoryDriver
    from harn.storage.engines.open_engine import check_there, open_driver
    from harn.storage.engines.sqlite_migration import migrate
    from harn.storage.engines.sqlite_session import Session
    from harn.storage.engines.sqlite_version import sqlite_version, wal_is_safe
else:
    front_door(
        __name__,
        {
            "fold_record": "fold_record",
            "memory": "MemoryDriver",
            "open_engine": "check_there open_driver",
            "sqlite_migration": "migrate",
            "sqlite_session": "Session",
            "sqlite_version": "sqlite_version wal_is_safe",
        },
    )

__all__ = [
    "MemoryDriver",
    "Session",
    "check_there",
    "fold_record",
    "migrate",
    "open_driver",
    "sqlite_version",
    "wal_is_safe",
]
