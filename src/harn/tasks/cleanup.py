"""Cleanups of the current block: `defer`, `owned`, `disown`, `drop`.

They belong to the innermost open `scope`, else to the current task. They run last in, first out
however the block ends, after the tasks of the block have ended.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from harn.context import Frame, add_cleanup
from harn.current import current_frame
from harn.tasks.callables import check_callable
from harn.tasks.handle import TaskHandle

T = TypeVar("T")


class Ownership:
    """The marker that `Owned` adds to an annotation."""

    def __repr__(self) -> str:
        return "owned"


Owned = Annotated[T, Ownership()]
"""`Owned[T]` is `T` to type checkers; `harn lint` follows it (HARN-OWN-003)."""


class DeferredCall:
    """The key of a deferred call: each `defer` is an entry of its own, with a name for the log."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn: Callable[..., Any] = fn

    def __repr__(self) -> str:
        return f"defer({self.fn!r})"


def defer(fn: Callable[..., Any], *args: Any) -> None:
    """Call *fn* with *args* when the enclosing `scope`, or else the current task, ends.

    Deferred calls run last in, first out however the block ends, all of them even if one fails.
    An async *fn* is awaited to its end; a cancel that arrives meanwhile is raised afterwards. A
    plain *fn* runs on the event loop, so it should be quick.

    >>> import harn
    >>> async def main() -> None:
    ...     async with harn.scope():
    ...         harn.defer(print, "closed")
    ...         print("open")
    >>> harn.run(main)
    open
    closed
    """
    defer_in(current_frame(), fn, args)


def defer_in(frame: Frame, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call *fn* with *args* when *frame* ends."""
    check_callable(fn)
    add_cleanup(frame, DeferredCall(fn), functools.partial(fn, *args))


def owned(handle: T) -> T:
    """Let the enclosing `scope`, or else the current task, `drop` *handle* when it ends.

    Returns *handle*. A second call in the same block changes nothing.

    >>> import harn
    >>> class File:
    ...     def close(self) -> None:
    ...         print("closed")
    >>> async def main() -> None:
    ...     async with harn.scope():
    ...         harn.owned(File())
    >>> harn.run(main)
    closed
    """
    add_cleanup(current_frame(), _key(handle), functools.partial(_close, handle))
    return handle


def disown(handle: T) -> T:
    """Undo `owned` in this block or one around it: from now on the caller closes *handle*.

    A permit is owned by its block without a call of `owned`; after `disown` it is held until it is
    released. Returns *handle*, so that a function can end in `return disown(handle)`. A handle
    that is not owned here is returned unchanged.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     async with harn.scope():
    ...         return harn.disown(harn.owned(["not closed"]))
    >>> harn.run(main)
    ['not closed']
    """
    frame: Frame | None = current_frame()
    key = _key(handle)
    while frame is not None:
        if frame.cleanups is not None and (cleanup := frame.cleanups.pop(key, None)) is not None:
            if hasattr(cleanup, "disowned"):
                cleanup.disowned()
            break
        frame = _outside(frame)
    return handle


async def drop(handle: Any) -> None:
    """Close *handle* now, and not again at the end of the block.

    A task is cancelled and awaited (its error stays with its owner). Anything else is closed by the
    first method that it has of `aclose`, `close` and `release`; without one, nothing happens.
    Dropping twice is harmless if closing twice is.

    Cancelling interrupts an async close as it would if awaited directly.

    >>> import harn
    >>> async def main() -> None:
    ...     await harn.drop("nothing to close")
    >>> harn.run(main)
    """
    disown(handle)
    result = _close(handle)
    if inspect.isawaitable(result):
        await result


def _close(handle: Any) -> Any:
    if isinstance(handle, TaskHandle):
        handle.cancel()
        return handle._join()
    if inspect.isclass(handle):
        return None
    for name in ("aclose", "close", "release"):
        close = getattr(handle, name, None)
        if callable(close):
            return close()
    return None


def _key(handle: object) -> object:
    # By identity: a handle may be unhashable, or equal to another. The entry keeps it alive.
    if type(handle).__hash__ is object.__hash__:
        return handle  # a permit is its own key too: `sync` adds it without `owned`
    return ("owned", id(handle))


def _outside(frame: Frame) -> Frame | None:
    """Return the frame around *frame* in the same task, if *frame* is an open scope's."""
    nursery = frame.nursery
    if nursery is not None and nursery.frame is frame:
        outer: Frame = nursery.outer
        return outer if outer.task is frame.task else None
    return None
