"""Run the cleanups of a frame, all of them, whatever happens meanwhile.

Cleanups unwind last in, first out. One that fails does not stop the others; a cancel that
arrives while one waits is kept until the last has run. What comes out in the end is decided by
`weigh`: a cancel before anything else, then the error that was already on its way, then the
first failure; whatever loses becomes a note on the winner.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from harn.joining import REPORT_AFTER, logger

if TYPE_CHECKING:
    from harn.runtime import Frame


async def unwind(frame: Frame, error: BaseException | None = None) -> BaseException | None:
    """Call every cleanup of *frame*; return what is to be raised now, *error* included, or None.

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
                await _to_the_end(frame, owner, result, failures)
        except BaseException as failure:
            failures.append(failure)
    frame.task.shielded -= 1
    return weigh(error, failures) if failures else error


def weigh(error: BaseException | None, failures: Iterable[BaseException]) -> BaseException | None:
    """Choose what comes out; the others become notes on it."""
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
            chosen.add_note(f"also: {_described(other)}")
        for line in getattr(other, "__notes__", ()):
            chosen.add_note(line)


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an exception whose __str__ raises must not hide the others
        return type(error).__name__


async def _to_the_end(
    frame: Frame, owner: object, cleanup: Awaitable[Any], failures: list[BaseException]
) -> None:
    # A task of its own: a cancel aimed at whoever unwinds must not stop the cleanup half-way.
    clock = frame.task.runtime.clock
    running = asyncio.ensure_future(_awaited(cleanup))
    report = partial(logger.warning, "a cleanup of %r still runs after %g s", owner, REPORT_AFTER)
    timer = clock.call_at(clock.monotonic() + REPORT_AFTER, report, background=True)
    try:
        while not running.done():
            try:
                await asyncio.wait((running,))
            except asyncio.CancelledError as cancel:
                failures.append(cancel)
    finally:
        timer.cancel()
    if running.cancelled():
        failures.append(asyncio.CancelledError())
    elif (failure := running.exception()) is not None:
        failures.append(failure)


async def _awaited(cleanup: Awaitable[Any]) -> None:
    await cleanup
