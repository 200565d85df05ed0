"""Wait for the pool tasks that a dispatch caused, with a timeout and a line of progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from harn.errors import DeadlineExceeded
from harn.plurals import counted
from harn.pools import Caused, CausedOutcome
from harn.tasks import deadline, sleep
from harn.triggers import Triggers

if TYPE_CHECKING:
    from harn.runtime import Runtime

TELL_EVERY = 0.5


class Finishing:
    """Waits for pool tasks *within* seconds, reports progress, and keeps the results in `seen`."""

    def __init__(self, runtime: Runtime, within: float, tell: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._within = within
        self._tell = tell
        self.seen: list[CausedOutcome] = []

    async def __call__(self, caused: Caused) -> CausedOutcome:
        """Wait for the tasks in *caused*. Cancelling leaves them running."""
        clock = self._runtime.clock
        until = clock.monotonic() + self._within
        showing = asyncio.ensure_future(self._show(caused))
        try:
            await self._dispatches_ended(caused)
            work = await caused.wait(max(0.001, until - clock.monotonic()))
        finally:
            showing.cancel()
            await asyncio.wait((showing,))
        self.seen.append(work)
        return work

    async def _dispatches_ended(self, caused: Caused) -> None:
        """Wait for dispatches of events that a handler emitted; others stay in the inbox."""
        dispatcher = self._runtime.service(Triggers).dispatcher
        with contextlib.suppress(DeadlineExceeded):
            async with deadline(max(0.001, self._within)):
                while any(
                    each.caused_by is caused and not each.is_parked
                    for each in dispatcher.running.values()
                ):
                    await dispatcher.changed()

    async def _show(self, caused: Caused) -> None:
        while True:
            if left := caused.unfinished:
                self._tell(f"waiting for {counted(left, 'pool task')}")
            await sleep(TELL_EVERY)
