"""Ends sessions of PostgreSQL that hold locks while their client is silent in mid-burst.

All statements of a round trip are sent as one burst, which ends with a Sync. A burst of more than
some kilobytes travels in several packets. If the client is stopped, or its network is cut, between
two of them, the server has carried out the first statements and waits for the rest with their
locks held. None of its time limits counts then: such a session is neither idle in its transaction
(it has not seen the Sync) nor inside a statement. It would keep the row of a queue for as long as
the connection lives. So a process that waited for a lock and did not get it ends such sessions. The
client whose session was ended repeats its operation under the same number, and it lands once.

Two more kinds are ended after the time that a statement may take, since the server does not tell
how long their client has been silent: a stream of rows (`COPY`), and a client that reads no answer.
A session that is not harn's is never ended, nor one that has only enqueued in a caller's own
transaction.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg

from harn.storage.engines.postgres.connecting import IDLE_MS, STATEMENT_MS
from harn.storage.engines.postgres.connections import PostgresServer, pipeline_of
from harn.storage.queries import load_queries

if TYPE_CHECKING:
    from psycopg import Connection

logger: logging.Logger = logging.getLogger("harn.storage")


def end_stalled_sessions(connection: Connection[Any], server: PostgresServer) -> int:
    """End the sessions of harn that are silent and lock tables of ours; return how many.

    A role that may not end them, or does not see them, ends none.
    """
    query = load_queries("postgres")["end_stalled_sessions"].text
    params = {
        "schema": f'"{server.schema}"',
        "silent_ms": IDLE_MS,
        "statement_ms": STATEMENT_MS,
    }
    pipeline = pipeline_of(connection)
    try:
        [result] = pipeline.run([(query, params)])
    except psycopg.Error as error:
        logger.debug("stalled sessions could not be looked for: %s", server.told(error))
        return 0
    ended = [pid for (pid,) in pipeline.rows(result)]
    if ended:
        logger.warning(
            "%s: ended sessions that held locks and sent nothing more in the middle of an operation"
            " (server processes %s); their process is stopped or cut off from the network",
            server.where,
            ", ".join(map(str, ended)),
        )
    return len(ended)
