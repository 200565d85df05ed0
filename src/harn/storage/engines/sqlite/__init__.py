"""sqlite://: the store is one database file, with one writing thread for each process.

sqlite_driver.py   the engine: a writer, a reader and a copier
open_files.py      the database files that are open in this process
backup.py          an online copy of a store
"""

from __future__ import annotations

from harn.storage.engines.sqlite.sqlite_driver import BUSY_MS, SqliteDriver

__all__ = ["BUSY_MS", "SqliteDriver"]
