"""Callbacks for the end of a task: the part of asyncio's future that `asyncio.wait` uses.

A handle is awaitable, and that is all that `gather`, `wait_for`, `shield` and `as_completed` need:
they wrap it in a task of their own, and cancelling that one leaves ours running. `asyncio.wait`
wraps nothing. It asks for `done`, `cancelled`, `exception` and these callbacks. A handle is still
not a future for asyncio (it has no `_asyncio_future_blocking`): if it were, a cancelled `gather` or
`wait_for` would cancel the task behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any


class DoneCallbacks:
    """The callbacks of one task, in the order in which they were added."""

    __slots__ = ("_added",)

    def __init__(self) -> None:
        self._added: list[tuple[Callable[[Any], object], Context]] = []

    def __bool__(self) -> bool:
        return bool(self._added)

    def add(self, fn: Callable[[Any], object], context: Context | None) -> None:
        """Call *fn* in *context*, or in a copy of the present one."""
        self._added.append((fn, copy_context() if context is None else context))

    def remove(self, fn: Callable[[Any], object]) -> int:
        """Remove *fn* wherever it was added; return how often."""
        kept = [each for each in self._added if each[0] != fn]
        removed = len(self._added) - len(kept)
        self._added = kept
        return removed

    def run(self, loop: asyncio.AbstractEventLoop, ended: Any) -> None:
        """Call each with the task that has *ended*, soon."""
        for fn, context in self._added:
            loop.call_soon(fn, ended, context=context)
        self._added = []
