"""Wait for cancelled tasks to the very end, whatever cancels us meanwhile.

Structured code must not return while something it owns is still running. A cancel that arrives
during that wait is passed on to the tasks and kept; it is raised once they have all ended, never
swallowed and never turned into anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from harn.clock import Clock, Timer

logger = logging.getLogger("harn.tasks")

REPORT_AFTER = 5.0
"""Seconds after which a task that ignores its cancellation is reported."""


async def join_cancelled(
    tasks: Collection[asyncio.Future[Any]],
    clock: Clock,
    describe: Callable[[asyncio.Future[Any]], str] = repr,
) -> None:
    """Wait until every one of *tasks*, cancelled by the caller, is done; results stay with them.

    Cancelling this cancels the tasks once more and still waits for all of them, then raises the
    cancel. Whoever is left after five seconds is named in the log, and again each time that
    doubles.
    """
    left = {task for task in tasks if not task.done()}
    if not left:
        return
    waiter: asyncio.Future[None] | None = None
    timer: Timer
    cancelled: asyncio.CancelledError | None = None
    started = clock.monotonic()

    def one_done(task: asyncio.Future[Any]) -> None:
        left.discard(task)
        if not left and waiter is not None and not waiter.done():
            waiter.set_result(None)

    def report_at(patience: float) -> Timer:
        return clock.call_at(started + patience, partial(report, patience), background=True)

    def report(patience: float) -> None:
        nonlocal timer
        for task in left:
            logger.warning("%s still runs %g s after its cancel", describe(task), patience)
        timer = report_at(patience * 2)

    timer = report_at(REPORT_AFTER)
    for task in list(left):
        task.add_done_callback(one_done)
    try:
        while left:
            waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            except asyncio.CancelledError as error:
                cancelled = error
                for task in list(left):
                    task.cancel()
    finally:
        timer.cancel()
    if cancelled is not None:
        raise cancelled
