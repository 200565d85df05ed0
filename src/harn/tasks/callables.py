"""What can be called, and whether the call returns an awaitable."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from types import FunctionType, MethodType
from typing import Any

from harn.errors import InvalidOption


def check_callable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return *fn*; raise `InvalidOption` with advice if it cannot be called."""
    if callable(fn):
        return fn
    if isinstance(fn, Coroutine):
        name = getattr(fn, "__name__", "fn")
        fn.close()
        raise InvalidOption("fn", fn, f"the function itself: {name}, not {name}()")
    if isinstance(fn, Awaitable | asyncio.Future):
        raise InvalidOption("fn", fn, "a function to call; this has been started already")
    raise InvalidOption("fn", fn, "a function, or anything else that can be called")


def is_async_callable(fn: Callable[..., Any]) -> bool:
    """Tell whether calling *fn* returns an awaitable.

    >>> async def fetch(): ...
    >>> is_async_callable(functools.partial(fetch)), is_async_callable(print)
    (True, False)
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    if type(fn) in (FunctionType, MethodType) or inspect.isbuiltin(fn):
        return inspect.iscoroutinefunction(fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(type(fn), "__call__", None)  # noqa: B004 - the method is inspected, not called
    )
