"""Ending owned tasks: wait for cancelled ones, run cleanups, choose the error to raise.

Structured code must not return while something it owns is still running. `join_cancelled` waits for
tasks that were cancelled; `unwind` runs the cleanups of a frame, last in, first out. A cancel that
arrives meanwhile is kept and raised once everything has ended. It is never swallowed and never
turned into anything else.

Several errors may occur at the end. `choose_error` takes a cancel first, then the error that was
already being raised, then the first failure. The others become notes on it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.clock import Clock, Timer
from harn.error_text import error_text

if TYPE_CHECKING:
    from harn.context import Frame

logger: logging.Logger = logging.getLogger("harn.tasks")

REPORT_AFTER = 5.0
"""Seconds after which a task that ignores its cancellation is reported."""


async def join_cancelled(tasks: Collection[asyncio.Future[Any]], clock: Clock) -> None:
    """Wait until every one of *tasks*, cancelled by the caller, is done; results stay with them.

    Cancelling this cancels the tasks once more and still waits for all of them, then raises the
    cancel. A task that still runs after five seconds is named in the log, and again each time that
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
            logger.warning("%r still runs %g s after its cancel", task, patience)
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


async def unwind(frame: Frame, error: BaseException | None = None) -> BaseException | None:
    """Call every cleanup of *frame*; return the error to raise now, which may be *error*, or None.

    A plain cleanup is called here, on the loop; what it returns is awaited. Cancelling is kept
    until every cleanup has run, and is then the error returned.
    """
    failures: list[BaseException] = []
    frame.task.shielded += 1
    while frame.cleanups:
        owner, cleanup = frame.cleanups.popitem()
        try:
            result = cleanup()
            if inspect.isawaitable(result):
                timer = _report_later(frame.task.runtime.clock, owner)
                try:
                    if not await finish(result, failures):
                        failures.append(asyncio.CancelledError())
                finally:
                    timer.cancel()
        except BaseException as failure:
            failures.append(failure)
    frame.task.shielded -= 1
    return choose_error(error, failures) if failures else error


def _report_later(clock: Clock, owner: object) -> Timer:
    report = partial(logger.warning, "a cleanup of %r still runs after %g s", owner, REPORT_AFTER)
    return clock.call_at(clock.monotonic() + REPORT_AFTER, report, background=True)


def choose_error(
    error: BaseException | None, failures: Iterable[BaseException]
) -> BaseException | None:
    """Choose the error to raise; the others become notes on it."""
    found = [*([error] if error is not None else []), *failures]
    if not found:
        return None
    cancels = [each for each in found if isinstance(each, asyncio.CancelledError)]
    exits = [each for each in found if not isinstance(each, Exception)]
    chosen = (cancels or exits or found)[0]
    note(chosen, found)
    return chosen


def note(chosen: BaseException, others: Iterable[BaseException]) -> None:
    """Write *others*, and the notes they carry, on *chosen*; cancels leave only their notes."""
    for other in others:
        if other is chosen:
            continue
        if not isinstance(other, asyncio.CancelledError):
            chosen.add_note(f"also: {error_text(other)}")
        for line in getattr(other, "__notes__", ()):
            chosen.add_note(line)


async def finish(work: Awaitable[Any], failures: list[BaseException]) -> bool:
    """Await *work* to its end; add its error to *failures*, and each cancel of the caller.

    It runs as a task of its own: a cancel aimed at the caller must not stop it half-way. Returns
    false if *work* itself was cancelled.
    """
    running = asyncio.ensure_future(_awaited(work))
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError as cancel:
            failures.append(cancel)
    if running.cancelled():
        return False
    if (failure := running.exception()) is not None:
        failures.append(failure)
    return True


async def _awaited(work: Awaitable[Any]) -> None:
    await work


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the result of *future*, so that an error that no caller awaits is not reported.

    For `add_done_callback`: asyncio logs the error of a future that nothing has asked for it.
    """
    if not future.cancelled():
        future.exception()
