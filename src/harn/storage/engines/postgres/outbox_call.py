"""Calling our SQL function on a connection that belongs to the caller, in its transaction.

The connection is psycopg's, or SQLAlchemy's over psycopg. SQLAlchemy is not imported: it is asked
to execute the statement itself, so that it knows of the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from harn.errors import InvalidOption
from harn.storage.queries import load_queries

ACCEPTED = "a psycopg AsyncConnection, or a SQLAlchemy AsyncConnection or AsyncSession over psycopg"
NOT_HERE = ("3F000", "42883", "HRN01")
"""No such schema, no such function, or the function of another store."""


async def put(connection: Any, schema: str, job: Mapping[str, Any]) -> str:
    """Put a job into the outbox of *schema* by the transaction of *connection*."""
    text = load_queries("postgres")["outbox_add"].text.format(schema=schema)
    try:
        if isinstance(connection, psycopg.AsyncConnection):
            async with connection.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(text, job)
                row = await cursor.fetchone()
        else:
            theirs = await _of_sqlalchemy(connection)
            row = (await theirs.exec_driver_sql(text, dict(job))).fetchone()
    except Exception as error:
        cause = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's error
        if getattr(cause, "sqlstate", None) not in NOT_HERE:
            raise
        raise InvalidOption(
            "connection",
            connection,
            f"a connection to the database of the runtime's store, schema {schema!r} ({cause})",
        ) from error
    assert row is not None
    ticket = row[0]
    # psycopg returns text as bytes where the client's encoding is SQL_ASCII.
    return ticket.decode() if isinstance(ticket, bytes) else str(ticket)


async def _of_sqlalchemy(connection: Any) -> Any:
    """Return SQLAlchemy's AsyncConnection, which knows that a transaction is under way."""
    if not type(connection).__module__.startswith("sqlalchemy.ext.asyncio"):
        raise InvalidOption("connection", connection, ACCEPTED)
    theirs = connection
    if not hasattr(theirs, "exec_driver_sql"):
        if not hasattr(theirs, "connection"):
            raise InvalidOption("connection", connection, ACCEPTED)
        theirs = await theirs.connection()
    if theirs.dialect.driver not in ("psycopg", "psycopg_async"):
        raise InvalidOption(
            "connection", connection, f"{ACCEPTED}; this one uses {theirs.dialect.driver}"
        )
    return theirs
