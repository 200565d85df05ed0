"""`wait_agent`: wait for anything that can be waited for, one or many."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol, TypeVar, overload

from harn.errors import InvalidOption

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class HasWait(Protocol[T_co]):
    """A handle whose `wait()` returns how it ended: of a task, a pool task, a supervisor."""

    def wait(self) -> Awaitable[T_co]:
        """Wait for its end."""


@overload
async def wait_agent(handle_or_handles: HasWait[T]) -> T: ...
@overload
async def wait_agent(handle_or_handles: Awaitable[T]) -> T: ...
@overload
async def wait_agent(handle_or_handles: Iterable[HasWait[T]]) -> list[T]: ...
@overload
async def wait_agent(handle_or_handles: Iterable[Awaitable[T]]) -> list[T]: ...
@overload
async def wait_agent(handle_or_handles: Iterable[HasWait[Any] | Awaitable[Any]]) -> list[Any]: ...
async def wait_agent(handle_or_handles: Any) -> Any:
    """Wait for a task handle, a pool task, a supervisor, or a list of them; return how it ended.

    If it has an async `wait()`, that is called (a task handle returns its value, a pool task its
    snapshot, a supervisor its state); otherwise it is awaited. For a list, the results are a list
    in the same order, and the first error in that order is raised.

    Cancelling stops waiting and changes nothing else.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     return await harn.wait_agent([harn.spawn(lambda: 1), harn.spawn(lambda: 2)])
    >>> harn.run(main)
    [1, 2]
    """
    if _can_wait(handle_or_handles):
        return await _waited(handle_or_handles)
    if isinstance(handle_or_handles, Iterable) and not isinstance(handle_or_handles, str | bytes):
        handles = list(handle_or_handles)
        for handle in handles:
            if not _can_wait(handle):
                raise InvalidOption("handle", handle, _ACCEPTED)
        return [await _waited(handle) for handle in handles]
    raise InvalidOption("handle", handle_or_handles, _ACCEPTED)


_ACCEPTED = "a task handle, a pool task, a supervisor, or a list of them"


def _can_wait(handle: Any) -> bool:
    return inspect.isawaitable(handle) or callable(getattr(handle, "wait", None))


async def _waited(handle: Any) -> Any:
    wait = getattr(handle, "wait", None)
    return await (wait() if callable(wait) else handle)
