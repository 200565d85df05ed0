"""The engines: four ways to carry an operation out, each behind the same `Driver`.

An engine is imported only when a store of its kind is opened: PostgreSQL is an extra.

    sqlite/            sqlite://: one database file
    postgres/          postgresql://: one schema of a server
    file/              file://: a directory of JSONL files
    memory/            memory://: gone with its runtime

    store_thread.py    a thread with an inbox, and what brings its answers back to the event loop
    sqlite_session.py  one SQLite connection and the operations that run on it
    inotify.py         hints that another process changed a file
"""
