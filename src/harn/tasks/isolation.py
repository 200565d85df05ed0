"""Where a function runs: on the loop, on a worker thread, or in a worker process.

`bind` turns any callable (async or plain, function, partial, method, object) into an async function
that runs in the right place. A `Runner` is one such place with its own limit; a pool has its own,
everything else shares the runtime's.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any, Literal, Protocol, get_args

from harn.option_checks import one_of
from harn.runtime import Runtime
from harn.tasks.callables import check_callable, is_async_callable
from harn.tasks.threads import Threads

Isolation = Literal["auto", "task", "thread", "process"]
Call = Callable[..., Awaitable[Any]]

MAX_THREADS = 128
"""Worker threads of one runtime, outside its pools. They start when needed."""


class Runner(Protocol):
    """A place to run functions, at most *limit* at once (None: no limit)."""

    limit: int | None

    def bind(self, fn: Callable[..., Any]) -> Call:
        """Return an async function that runs *fn* here."""

    async def aclose(self) -> None:
        """End the threads or processes of this place."""


def bind(runtime: Runtime, fn: Callable[..., Any], isolation: Isolation) -> Call:
    """Return an async function that runs *fn* as *isolation* says, with the runtime's workers."""
    if isolation == "auto":
        if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:
            return fn  # a shortcut for the most common case: every spawn comes here
        check_callable(fn)
        if is_async_callable(fn):
            return fn
        return runtime.service(SharedThreads).threads.bind(fn)
    return runner_for(runtime, isolation).bind(check_callable(fn))


def limit_of(fn: Callable[..., Any], isolation: Isolation) -> int | None:
    """Return how many calls of *fn* the runtime's own workers can run at once."""
    if isolation == "process":
        return os.cpu_count() or 1
    if isolation == "thread" or (isolation == "auto" and not is_async_callable(fn)):
        return MAX_THREADS
    return None


def runner_for(runtime: Runtime, isolation: Isolation, max_workers: int | None = None) -> Runner:
    """Return the place that *isolation* names.

    With *max_workers* it is a new one with that many workers, and the caller closes it. Without,
    it is the runtime's shared one, which closes with the runtime.
    """
    check_isolation(isolation)
    if isolation == "task":
        return OnLoop()
    if isolation == "process":
        from harn.tasks.processes import Processes, SharedProcesses

        if max_workers is not None:
            return Processes(runtime, max_workers)
        return runtime.service(SharedProcesses).processes
    threads = (
        Threads(runtime, max_workers)
        if max_workers is not None
        else runtime.service(SharedThreads).threads
    )
    return OnLoopOrThread(threads) if isolation == "auto" else threads


class OnLoop:
    """The event loop itself; a plain function blocks it while it runs."""

    limit: int | None = None

    def bind(self, fn: Callable[..., Any]) -> Call:
        """Return an async function that calls *fn* on the loop."""
        return fn if is_async_callable(fn) else functools.partial(_call_here, fn)

    async def aclose(self) -> None:
        """Do nothing: the loop belongs to the program."""


class OnLoopOrThread:
    """Async functions on the loop, plain ones on *threads*."""

    limit: int | None = None

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def bind(self, fn: Callable[..., Any]) -> Call:
        """Return an async function that runs *fn* on the loop or on a thread."""
        return fn if is_async_callable(fn) else self._threads.bind(fn)

    async def aclose(self) -> None:
        """End the threads."""
        await self._threads.aclose()


async def _call_here(fn: Callable[..., Any], *args: Any) -> Any:
    result = fn(*args)
    return await result if inspect.isawaitable(result) else result


class SharedThreads:
    """The worker threads of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.threads: Threads = Threads(runtime, MAX_THREADS)

    async def aclose(self) -> None:
        """End the threads with the runtime."""
        await self.threads.aclose()


def check_isolation(value: Isolation) -> Isolation:
    """Return *value*, or raise `InvalidOption` if it is no isolation."""
    return one_of("isolation", value, get_args(Isolation))
