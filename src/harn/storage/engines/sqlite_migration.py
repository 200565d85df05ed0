"""Migration of a SQLite schema: the tables of every concern are made or upgraded."""

from __future__ import annotations

from typing import Any

import apsw

from harn.storage.queries import load_queries, missing_steps


def migrate(connection: apsw.Connection, where: str) -> None:
    """Bring every concern's tables up to date, in one transaction that one process wins."""
    if not _steps_left(connection, where):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        queries = load_queries("sqlite")
        connection.execute(queries["make_versions"].text)
        for step in _steps_left(connection, where):
            for _ in connection.execute(step.script):
                pass
            version = {"concern": step.concern, "version": step.version}
            connection.execute(queries["note_version"].text, version)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _steps_left(connection: apsw.Connection, where: str) -> list[Any]:
    queries = load_queries("sqlite")
    known = connection.execute(queries["has_versions"].text).fetchall()
    rows: Any = connection.execute(queries["versions"].text).fetchall() if known else []
    return missing_steps(dict(rows), "sqlite", where)
