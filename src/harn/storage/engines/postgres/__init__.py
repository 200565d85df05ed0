"""postgresql://: the store is one schema of a server, which several machines may share.

postgres_driver.py     the engine: a few threads
operation_runner.py    what runs in each: an operation is carried out, again if that can help
connections.py         the pool of connections; connecting.py, how each is opened
postgres_migration.py  the schema is made and upgraded
server_errors.py       what errors of the server mean
stalled_sessions.py    ends sessions that hold locks while their client is silent
libpq_pipeline.py      bursts of statements, close to the protocol
arrays.py              columns of values as PostgreSQL arrays
append_columns.py      the columns of an append, and the places that its records got
outbox_call.py         enqueueing on a connection of the caller's own
notify.py              LISTEN and NOTIFY as a hint that another process wrote
newest_offsets.py      the topics that the listener looks at besides, for idle readers
"""

from __future__ import annotations

from harn.storage.engines.postgres.postgres_driver import PostgresDriver
from harn.storage.engines.postgres.postgres_migration import is_made

__all__ = ["PostgresDriver", "is_made"]
