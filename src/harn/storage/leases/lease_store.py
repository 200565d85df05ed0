"""The store that keeps a runtime's leases: its own, or one beside it where files are no place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.storage.leases.named_leases import lease_place
from harn.storage.store import Store
from harn.storage.url import read_url

if TYPE_CHECKING:
    from harn.runtime import Runtime


class LeaseStore:
    """A runtime's store of leases, opened on first use: `runtime.service(LeaseStore).store`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._beside: Store | None = None

    @property
    def store(self) -> Store:
        """The open store."""
        place = lease_place(self._runtime.storage_url)
        if place == self._runtime.storage_url:
            return self._runtime.service(Store)
        if self._beside is None:
            self._beside = Store(self._runtime, place)
        return self._beside

    @property
    def is_there(self) -> bool:
        """Whether the store has been made: a process that only looks must not make it."""
        place = lease_place(self._runtime.storage_url)
        own = place == self._runtime.storage_url
        return own or self._beside is not None or read_url(place).path.is_file()

    async def aclose(self) -> None:
        """Close the store beside, if it was opened."""
        if self._beside is not None:
            await self._beside.aclose()
