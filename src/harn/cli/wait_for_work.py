"""What a command that dispatches waits for before it ends: the work that it caused.

Pools of scope `"session"` end with their process. A command that left at once would take the work
with it that it was asked to start.
"""

from __future__ import annotations

import asyncio
import contextlib

import click

from harn.cli.output import DURATION, LiveLine, say
from harn.errors import DeadlineExceeded
from harn.escaping import one_line
from harn.pools import Caused, WorkDone
from harn.runtime import Runtime
from harn.tasks import deadline, sleep

SHOWN_EVERY = 0.5

work_option = click.option(
    "--shutdown-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long the pool tasks that this causes may take to end.",
)


class Finishing:
    """Waits for pool tasks, *within* seconds, with a line on a terminal; keeps what it saw."""

    def __init__(self, runtime: Runtime, within: float) -> None:
        self._runtime = runtime
        self._within = within
        self.seen: list[WorkDone] = []

    async def __call__(self, caused: Caused) -> WorkDone:
        """Wait for what was *caused*. Cancelling leaves it alone."""
        clock = self._runtime.clock
        until = clock.monotonic() + self._within
        showing = asyncio.ensure_future(_show(caused))
        try:
            await self._dispatches_ended()
            work = await caused.wait(max(0.001, until - clock.monotonic()))
        finally:
            showing.cancel()
            await asyncio.wait((showing,))
        self.seen.append(work)
        return work

    async def _dispatches_ended(self) -> None:
        """Wait for what a handler emitted in turn; what is left over stays in the inbox."""
        from harn.triggers import Triggers

        dispatcher = self._runtime.service(Triggers).dispatcher
        with contextlib.suppress(DeadlineExceeded):
            async with deadline(max(0.001, self._within)):
                while any(not each.is_parked for each in dispatcher.running.values()):
                    await dispatcher.changed()


async def _show(caused: Caused) -> None:
    """Say how many pool tasks are left, on a line that is written over."""
    line = LiveLine()
    try:
        while True:
            if left := caused.unfinished:
                line.show(f"waiting for {left} pool tasks")
            await sleep(SHOWN_EVERY)
    finally:
        line.end()


def fail_line(what: str, more: int = 0) -> None:
    """Say on stderr, in one line, why the exit code is 1."""
    others = f" (and {more} more)" if more else ""
    say(f"error: {one_line(what)}{others}", err=True)
