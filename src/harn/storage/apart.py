"""A store's engine opened a second time, for a thread with an event loop of its own."""

from __future__ import annotations

from typing import TypeVar

from harn.clock import Clock
from harn.storage.contract import Hooks
from harn.storage.engines.memory.memory_driver import MemoryDriver
from harn.storage.operations import Recipe
from harn.storage.store import Store, open_driver

T = TypeVar("T")


class Apart:
    """Carries operations out for the event loop that made it, and tells nobody."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._memory = store.driver if isinstance(store.driver, MemoryDriver) else None
        hooks = Hooks(lambda _: None, lambda: None)
        self._driver = None if self._memory else open_driver(store.place, lambda: clock, hooks)

    async def run(self, recipe: Recipe[T]) -> T:
        """Carry the operation out. Cancelling may leave it done."""
        if self._driver is None:
            assert self._memory is not None
            return self._memory.run_apart(recipe)
        return await self._driver.submit(recipe)

    async def aclose(self) -> None:
        """Close what was opened; a store in memory belongs to its runtime."""
        if self._driver is not None:
            await self._driver.aclose()
