"""sqlite://: the store is one database file, with one writing thread for each process.

sqlite_driver.py   the engine: a writer, a reader and a copier
connection_thread.py a thread with a connection of its own, and how long it waits for locks
writer_thread.py   the connection that writes: batches, syncs, the WAL
reader_threads.py  the connections that read: one for reads and checks, one for copies
open_files.py      the database files that are open in this process
backup.py          an online copy of a store
"""

from __future__ import annotations

from harn.storage.engines.sqlite.connection_thread import BUSY_MS
from harn.storage.engines.sqlite.sqlite_driver import SqliteDriver

__all__ = ["BUSY_MS", "SqliteDriver"]
