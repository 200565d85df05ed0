"""`deadline` ends a block that takes too long."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from harn.clock import Timer
from harn.current import current_runtime
from harn.duration import Duration, to_seconds, to_text
from harn.errors import DeadlineExceeded, HarnError
from harn.event_loop import running_loop
from harn.teardown import note


class Deadline:
    """A block with a time limit; made by `deadline`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: Timer | None = None
        self._passed = False

    async def __aenter__(self) -> Self:
        host = asyncio.current_task(running_loop())
        if self._timer is not None:
            raise HarnError("a deadline can be entered once; make a new one")
        assert host is not None
        self._host = host
        self._cancels_before = host.cancelling()
        clock = current_runtime().clock
        self._timer = clock.call_at(clock.monotonic() + self._seconds, self._pass)
        return self

    def _pass(self) -> None:
        self._passed = True
        self._host.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._timer is not None
        self._timer.cancel()
        if not self._passed:
            return
        self._passed = False
        others = self._host.uncancel() > self._cancels_before
        if isinstance(error, asyncio.CancelledError) and not others:
            exceeded = DeadlineExceeded(f"Deadline exceeded: {to_text(self._seconds)} have passed")
            note(exceeded, (error,))
            raise exceeded from error


def deadline(duration: Duration) -> Deadline:
    """Interrupt the block when *duration* has passed, and raise `DeadlineExceeded` from it.

    `async with deadline("30s")`: what the block waits for is cancelled, including the tasks of a
    `scope` inside it. The time is the runtime's monotonic clock. An outer deadline still applies
    inside an inner one. A cancel from outside stays a cancel, also when both happen at once.

    >>> import harn
    >>> async def main() -> str:
    ...     try:
    ...         async with harn.deadline("5ms"):
    ...             await harn.sleep("1h")
    ...     except harn.DeadlineExceeded as error:
    ...         return str(error)
    >>> harn.run(main)
    'Deadline exceeded: 5ms have passed'
    """
    return Deadline(to_seconds(duration))
