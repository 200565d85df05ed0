"""postgresql://: the store is one schema of a server, which several machines may share.

postgres_driver.py the engine: a few threads, each a lane
lane.py            one thread's way to carry an operation out, attempts and all
connections.py     connections, the schema, and errors in our words
pipeline.py        bursts of statements, close to the protocol
arrays.py          columns of values as PostgreSQL arrays
outbox_call.py     enqueueing on a connection of the caller's own
notify.py          LISTEN and NOTIFY as a hint that another process wrote
topic_looks.py     the topics that the listener looks at besides, for idle readers
"""

from __future__ import annotations

from harn.storage.engines.postgres.connections import is_made
from harn.storage.engines.postgres.postgres_driver import PostgresDriver

__all__ = ["PostgresDriver", "is_made"]
