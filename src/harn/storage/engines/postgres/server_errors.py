"""What the errors of psycopg mean: the connection is lost, or which error of ours it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import psycopg_pool

from harn.errors import HarnError, StorageBusy, StorageCorrupt, StorageError

if TYPE_CHECKING:
    from harn.storage.engines.postgres.connections import PostgresServer


def connection_lost(error: psycopg.Error) -> bool:
    """Tell whether *error* says that the connection is lost, or that the server takes none now."""
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg.InterfaceError):
        return True
    if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
        return True
    lost = error.sqlstate is None or error.sqlstate.startswith(("08", "57P", "53"))
    return isinstance(error, psycopg.OperationalError) and lost


def translated(error: psycopg.Error, server: PostgresServer) -> HarnError:
    """Return *error* as one of ours, which names *server*'s store and no password."""
    where, told = server.where, server.told(error)
    state = error.sqlstate or ""
    ours: HarnError
    if isinstance(error, psycopg.errors.LockNotAvailable | psycopg.errors.QueryCanceled):
        ours = StorageBusy(f"{where} is locked by another connection ({told}); try again")
    elif state.startswith("XX"):
        ours = StorageCorrupt(f"{where}: {told}")
    else:
        ours = StorageError(f"{where}: {told}")
    ours.__cause__ = error
    return ours
