"""From a store's URL to its engine: open it, or tell whether there is a store at all.

An engine is imported only when a store of its kind is opened: PostgreSQL is an extra.
"""

from __future__ import annotations

from collections.abc import Callable

from harn.clock import Clock
from harn.errors import StorageError
from harn.masking import mask
from harn.storage.contract import Driver, Hooks
from harn.storage.engines.memory import MemoryDriver
from harn.storage.url import StoreUrl, read_url


def open_driver(place: StoreUrl, clock: Callable[[], Clock], hooks: Hooks) -> Driver:
    """Make the engine for *place*; it opens files and connections when it is first used."""
    if place.engine == "memory":
        return MemoryDriver(clock, hooks)
    if place.engine == "sqlite":
        from harn.storage.engines.sqlite import SqliteDriver

        return SqliteDriver(
            place.path,
            clock,
            hooks,
            durability=place.durability,
            busy_ms=place.busy_ms,
        )
    if place.engine == "file":
        from harn.storage.engines.file import FileDriver

        return FileDriver(place, clock, hooks)
    try:
        from harn.storage.engines.postgres import PostgresDriver
    except ImportError as error:
        raise StorageError(
            "postgresql:// needs the extra 'postgres': pip install 'harn-runtime[postgres]'"
        ) from error
    return PostgresDriver(place, clock, hooks)


def check_there(url: str) -> None:
    """Refuse *url* if it names a file, directory or schema that does not exist.

    A caller that only reads would otherwise wait forever in front of a new, empty store.
    """
    place = read_url(url)
    if place.engine in ("sqlite", "file") and not place.path.exists():
        raise StorageError(f"there is no store at {place.path}; check the path")
    if place.engine == "postgresql":
        from harn.storage.engines.postgres import is_made

        schema = place.options.get("schema", "harn")
        if not is_made(place.rest, schema):
            raise StorageError(f"there is no store in the schema {schema!r} of {mask(url)}")
