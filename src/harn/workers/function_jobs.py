"""Durable functions as jobs: `submit` writes them, a consumer without a handler runs them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from harn.durable_calls import (
    DurableFunction,
    bound_call,
    durable_function,
    durable_function_named,
    durable_names,
)
from harn.durable_types import types_of
from harn.duration import Duration
from harn.errors import InvalidOption
from harn.exact_json import from_exact_json, is_exact
from harn.retry_policy import RetryPolicy
from harn.storage.queue import function_need, waiting_functions
from harn.tasks import Runner, check_arguments, deadline, is_async_callable, runner_for
from harn.workers.handler_exceptions import Bury, GiveBack
from harn.workers.records import Job, Priority

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harn.runtime import Runtime
    from harn.workers.queue import WorkerQueue

logger: logging.Logger = logging.getLogger("harn.workers")

UNKNOWN_AGAIN = "1m"
"""How long a job waits whose function was known when it was claimed, but no longer is."""
DEFAULT = RetryPolicy()


class JobOptions(TypedDict, total=False):
    """The keywords of `enqueue` and `submit`."""

    trigger_id: str | None
    priority: Priority
    tenant_id: str | None
    binding_key: str | None
    headers: Mapping[str, Any] | None
    dedupe_key: str | None
    not_before: datetime | Duration | None
    max_attempts: int
    cost: float
    connection: object | None


def call_job(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[DurableFunction, list[Any]]:
    """Return a durable function and its arguments as a job's payload, which JSON does not change.

    Arguments that do not fit the function are a `TypeError`.
    """
    check_arguments(fn, args)
    positional, keywords = [*args], {}
    if isinstance(fn, partial):
        positional, keywords = [*fn.args, *args], {**fn.keywords}
        fn = fn.func
    function = durable_function(fn)
    if function is None:
        name = getattr(fn, "__qualname__", None) or repr(fn)
        raise InvalidOption(
            "fn", name, "a function with @harn.durable, which workers that import it can find"
        )
    if is_exact([positional, keywords] if keywords else positional):
        return function, [positional, keywords]
    written = types_of(function.fn).encode(positional, keywords)
    if written is None:
        raise InvalidOption(
            "args",
            f"{len(positional) + len(keywords)} arguments of {function.name}",
            "values that JSON does not change: text, finite numbers, true, false, None, and lists "
            "and dicts with text keys of these; pydantic models for parameters of their type",
        )
    return function, from_exact_json(written)


class FunctionRunner:
    """The handler of a consumer without one: it runs the durable functions of this process."""

    def __init__(self, runtime: Runtime, retry: RetryPolicy | None) -> None:
        self._runner: Runner = runner_for(runtime, "auto")
        self._retry = retry
        self._names: list[str] = []
        self._needs: frozenset[str] = frozenset()
        self._plain: dict[str, DurableFunction] = {}
        """Async functions without a timeout and without models, which are called as they are."""

    @property
    def needs(self) -> frozenset[str]:
        """The functions of this process, as a claim names them; imports may add more."""
        names = durable_names()
        if names != self._names:
            self._names = names
            self._needs = frozenset(map(function_need, names))
        return self._needs

    def policy(self, job: Job) -> RetryPolicy:
        """Return how a failed *job* is retried: as its function says, or as the drain does."""
        function = durable_function_named(job.function or "")
        return (function and function.retry) or self._retry or DEFAULT

    def __call__(self, job: Job) -> Awaitable[Any]:
        """Begin the call of the function that *job* names. Cancelling cancels it."""
        name = job.function or ""
        function = durable_function_named(name)
        if function is None:
            raise GiveBack(UNKNOWN_AGAIN)
        match job.payload:
            case [list() as positional, dict() as keywords]:
                if self._plain.get(name) is function:
                    return function.fn(*positional, **keywords)  # type: ignore[no-any-return]
                return self._call(function, bound_call(function, positional, keywords))
        raise Bury(f"job {job.id} names the function {name}, but holds no arguments for it")

    async def _call(self, function: DurableFunction, call: Callable[[], Any]) -> Any:
        is_async = is_async_callable(function.fn)
        if not is_async:
            call = self._runner.bind(call)
        if function.timeout is not None:
            async with deadline(function.timeout):
                return await call()
        if is_async and not types_of(function.fn).has_parameters:
            self._plain[function.name] = function
        return await call()


class UnknownFunctions:
    """Warns once of each function that a queue's jobs name and this process does not know.

    A consumer looks at its start, when it has nothing to do, and before it returns.
    """

    def __init__(self, queue: WorkerQueue, runner: FunctionRunner) -> None:
        self._queue = queue
        self._runner = runner
        self._told: set[str] = set()

    async def look(self) -> None:
        """Warn of functions that are new here. Cancelling leaves nothing behind."""
        look = partial(waiting_functions, self._queue.name, self._runner.needs | self._told)
        for name in await self._queue.store.run(look, write=False):
            self._told.add(function_need(name))
            logger.warning(
                "queue %r holds jobs of the function %r, which this process does not know; it "
                "leaves them to other consumers (import the module that defines it)",
                self._queue.name,
                name,
            )
