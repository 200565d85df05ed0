"""Migration of a PostgreSQL schema: whether it is there, and how it is made or upgraded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from harn.clock import SystemClock
from harn.errors import StorageError
from harn.storage.engines.postgres.connecting import (
    FIRST_MS,
    IDLE_MS,
    STATEMENT_MS,
    answered_within,
    connect_options,
)
from harn.storage.queries import load_queries, missing_steps

if TYPE_CHECKING:
    from psycopg import Connection

FORGET_MS = 7 * 86_400_000
"""Milliseconds after which a producer that writes no more is forgotten."""


def is_made(dsn: str, schema: str) -> bool:
    """Tell whether a store was made in *schema*.

    A server that does not answer may have one: opening it then says what is wrong.
    """
    names = {"schema": f'"{schema}"', "versions": f'"{schema}".harn_schema'}
    try:
        with psycopg.connect(dsn, **connect_options(dsn)) as connection:
            cursor = psycopg.ClientCursor(connection)
            with answered_within(connection, FIRST_MS):
                [(_, listed)] = cursor.execute(load_queries("postgres")["has_schema"].text, names)
            return bool(listed)
    except psycopg.Error:
        return True


def migrate(connection: Connection[Any], schema: str, busy_ms: int, where: str) -> None:
    """Bring every concern's tables up to date, in one transaction under an advisory lock."""
    queries = load_queries("postgres")

    def run(name: str, **params: Any) -> list[Any]:
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(queries[name].text, params)
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []

    def applied() -> dict[str, int]:
        [(_, listed)] = run("has_schema", schema=f'"{schema}"', versions=f'"{schema}".harn_schema')
        return dict(run("versions")) if listed else {}

    path = f'"{schema}", pg_catalog'
    try:
        run(
            "begin_migration",
            path=path,
            lock_ms=str(busy_ms),
            statement_ms=str(STATEMENT_MS),
            idle_ms=str(IDLE_MS),
            lock=f"harn:{schema}",
        )
        steps = missing_steps(applied(), "postgres", where)
        if steps:
            [(exists, _)] = run("has_schema", schema=f'"{schema}"', versions="none")
            if not exists:
                connection.execute(queries["make_schema"].text.format(schema=schema))
            run("make_versions")
            for step in steps:
                connection.execute(step.script)
                run("note_version", concern=step.concern, version=step.version)
        run("forget_producers", before=SystemClock().now_ms() - FORGET_MS)
        connection.execute("COMMIT")
    except psycopg.errors.InsufficientPrivilege as error:
        connection.execute("ROLLBACK")
        why = str(error).partition("\n")[0]
        raise StorageError(
            f"{where} must be made or upgraded, and this role may not do that ({why}); open it "
            f"once with the role that owns the schema {schema!r}, or let this one create there"
        ) from error
    except BaseException:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise
