"""A graceful stop: raised once, in the wait that a task is in, or in the next one it enters.

`request_stop` marks a task as cancelled and raises `TaskCancelled` in it, once. It is raised in a
wait of this library (sleep, a channel, a permit, the result of another task ...), because there
the task holds nothing that an interruption could leave half done. Later waits work again, so that
the task can tidy up and return. An await of anything else is left alone; the caller of
`request_stop` decides how long it waits before it cancels the task.

How a wait takes part:

- it calls `raise_if_asked()` when it is entered, guarded by `if asked:`, which costs almost nothing
  while no stop is under way;
- it puts its future into `Task.parked` while it awaits it (`park`), and removes it afterwards.
  Setting an exception on that future must leave no more behind than cancelling the wait does.

A task may be in several waits at once (`asyncio.gather`), which end in any order. The stop is
raised in the one that began last of those that have not ended.

`parked(future)` does the second for a block. A wait for tasks that belong to the waiting one (a
scope's end) puts a function there instead: it passes the stop on to them and keeps waiting, and the
stop is raised in the next wait. Cleanups of a scope or task are not interrupted, as they are not by
a cancel; the stop is raised afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from harn.context import Place, Task, current_frame_var
from harn.errors import TaskCancelled

asked: set[Task] = set()
"""Tasks in which a stop has not been raised yet. Never rebound; changed on the loop only."""


def request_stop(task: Task) -> None:
    """Ask *task* to stop, and raise `TaskCancelled` in its current wait; only once.

    To be called on the thread of the task's loop. Harmless when the task has ended.
    """
    if task.stop_raised is not None or task in asked:
        return
    task.cancel_requested = True
    place = None if task.shielded else _last_place(task)
    if isinstance(place, asyncio.Future) and not place.done():
        task.stop_raised = _stop_error(task)
        place.set_exception(task.stop_raised)
        return
    asked.add(task)
    if place is not None and not isinstance(place, asyncio.Future):
        place()


def raise_if_asked() -> None:
    """Raise `TaskCancelled` if the current task was asked to stop and this is the first time."""
    frame = current_frame_var.get(None)
    if frame is not None and frame.task in asked and not frame.task.shielded:
        task = frame.task
        asked.discard(task)
        task.stop_raised = _stop_error(task)
        raise task.stop_raised


def park(task: Task, place: Place) -> dict[Place, None]:
    """Put *place* into *task*: a graceful stop reaches it until it is removed.

    Returns the places of the task's waits; the caller removes *place* from them afterwards.
    """
    places = task.parked
    if places is None:
        places = task.parked = {}  # kept: the next wait needs it again
    places[place] = None
    return places


def unpark(task: Task, place: Place) -> None:
    """Remove *place* from *task*; harmless if it is not there."""
    if task.parked is not None:
        task.parked.pop(place, None)


def _last_place(task: Task) -> Place | None:
    """Return the place of the wait that began last of those that have not ended."""
    for place in reversed(task.parked or {}):
        if not (isinstance(place, asyncio.Future) and place.done()):
            return place
    return None


class Parked:
    """A block in which a graceful stop of the current task reaches *place*; see `parked`."""

    # A class, because every wait in a queue comes here: a generator takes three times as long.
    __slots__ = ("_place", "_places")

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> None:
        frame = current_frame_var.get(None)
        if frame is None:
            self._places = None  # the implicit runtime's root, which nothing can stop
            return
        task = frame.task
        if asked and task in asked:
            if isinstance(self._place, asyncio.Future):
                raise_if_asked()
            else:
                self._place()
        self._places = park(task, self._place)

    def __exit__(self, *_: object) -> None:
        if self._places is not None:
            self._places.pop(self._place, None)


def parked(place: Place) -> Parked:
    """Let a graceful stop of the current task reach *place* while the block awaits it.

    Raises `TaskCancelled` at once if the stop came before; a function is called instead.
    """
    return Parked(place)


@contextmanager
def shielded() -> Generator[None]:
    """Hold back a graceful stop of the current task until the block has ended.

    The stop is then raised in the task's next wait.
    """
    frame = current_frame_var.get(None)
    if frame is None:
        yield  # the implicit runtime's root, which nothing can stop
        return
    task = frame.task
    task.shielded += 1
    try:
        yield
    finally:
        task.shielded -= 1


def is_stop(task: Task, error: BaseException | None) -> bool:
    """Tell whether *error* is the stop that was raised in *task*."""
    return error is not None and error is task.stop_raised


def _stop_error(task: Task) -> TaskCancelled:
    return TaskCancelled(f"task {task.id} was asked to stop")
