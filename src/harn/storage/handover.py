"""Between the loop and the threads that do a store's work.

A request goes to a thread with a future of the loop's and comes back settled, many at a time.
Every request is counted in the clock's activity from hand-over until its answer is back, so a
fake clock waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from harn.clock import Activity, Clock
from harn.storage.contract import Durability, Hooks
from harn.storage.operations import Recipe

T = TypeVar("T")


class Request:
    """One operation on its way: what to do, then what came of it."""

    __slots__ = ("activity", "durability", "error", "future", "recipe", "result", "touched")

    def __init__(
        self,
        recipe: Recipe[Any],
        durability: Durability,
        future: asyncio.Future[Any],
        activity: Activity,
    ) -> None:
        self.recipe = recipe
        self.durability = durability
        self.future = future
        self.activity = activity
        self.result: Any = None
        self.error: BaseException | None = None
        self.touched: set[str] | None = None
        """Topics that grew."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits: one given up before it began does not happen."""
        return not self.future.cancelled()


class Handover:
    """The loop's end of a store's threads."""

    def __init__(self, clock: Callable[[], Clock], hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()

    def request(self, recipe: Recipe[T], durability: Durability) -> Request:
        """Make a request; the caller passes it to a thread at once and awaits its future."""
        activity = self._clock().activity
        activity.store_began()
        return Request(recipe, durability, self._loop.create_future(), activity)

    def deliver(self, requests: Sequence[Request]) -> None:
        """Bring settled requests back; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._settle, requests)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            pass

    def hint(self) -> None:
        """Say that somebody else may have written; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._hooks.hinted)
        except RuntimeError:
            pass

    def grown(self, topic: str) -> None:
        """Say that somebody else wrote to *topic*; called in a thread."""
        try:
            self._loop.call_soon_threadsafe(self._hooks.appended, frozenset((topic,)))
        except RuntimeError:
            pass

    def _settle(self, requests: Sequence[Request]) -> None:
        touched: set[str] = set()
        for request in requests:
            if request.error is None and request.touched:
                touched |= request.touched
            future = request.future
            if not future.done():
                if request.error is not None:
                    future.set_exception(request.error)
                else:
                    future.set_result(request.result)
            request.activity.store_ended()
        if touched:
            self._hooks.appended(frozenset(touched))
