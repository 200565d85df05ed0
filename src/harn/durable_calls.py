"""`@durable`: the functions that stored data may name, and their calls as data.

A journal and a queue hold data, never code. A stored call names a function of this registry, which
the decorator fills when your modules are imported. A name that is not registered runs nothing.

A stored call is the function's name and its arguments as JSON, `[[positional], {keywords}]`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec

from harn.durable_types import types_of
from harn.duration import Duration, to_seconds
from harn.errors import HarnError, InvalidOption
from harn.exact_json import from_exact_json, to_exact_json
from harn.naming import has_controls
from harn.pydantic_types import reasons
from harn.retry_policy import RetryPolicy, check_policy

F = TypeVar("F", bound=Callable[..., Any])


class DurableFunction(msgspec.Struct, frozen=True):
    """A registered function; with *rerun* it may run again after an interruption.

    *retry* and *timeout*, in seconds, are for its jobs in queues.
    """

    name: str
    fn: Callable[..., Any]
    rerun: bool
    retry: RetryPolicy | None = None
    timeout: float | None = None


class DurableCall(msgspec.Struct, frozen=True, gc=False):
    """A durable function and its arguments, written by `encode_arguments`."""

    function: DurableFunction
    arguments: bytes

    def closure(self) -> Callable[[], Any]:
        """Return a callable without parameters that makes the call.

        Raises `HarnError` if the stored arguments do not fit the function, as it is now.
        """
        try:
            positional, keywords = from_exact_json(self.arguments)
            return bound_call(self.function, positional, keywords)
        except Exception as error:
            raise HarnError(
                f"the stored arguments do not fit {self.function.name}: {reasons(error)}"
            ) from error


_by_name: dict[str, DurableFunction] = {}
_by_function: dict[Callable[..., Any], DurableFunction] = {}


@overload
def durable(fn: F, /) -> F: ...
@overload
def durable(
    *,
    name: str | None = None,
    rerun: bool = False,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
) -> Callable[[F], F]: ...
def durable(
    fn: F | None = None,
    /,
    *,
    name: str | None = None,
    rerun: bool = False,
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
) -> Any:
    """Let queues and pipeline pools store calls of this function and run them in a later process.

    It is registered as `module:qualname`, or under *name*, which must stay the same from one run
    to the next. Submit it with JSON arguments: `queue.submit(fn, *args)`,
    `pool.submit(fn, *args)`, or a `functools.partial` of it.

    In a queue, a failed job follows *retry* (the default `RetryPolicy` if none is given), and an
    attempt that takes longer than *timeout* fails with `DeadlineExceeded`. In a pipeline pool, a
    call that was queued when the process ended is queued again; one that was running has failed,
    unless *rerun* allows it to run twice.

    >>> @durable(name="docs:report", rerun=True, timeout="30s")
    ... def report(customer: str) -> str:
    ...     return f"report for {customer}"
    >>> report("acme")
    'report for acme'
    """
    if not isinstance(rerun, bool):
        raise InvalidOption("rerun", rerun, "True or False")
    seconds = None if timeout is None else to_seconds(timeout, "timeout")
    if seconds == 0:
        raise InvalidOption("timeout", timeout, "a duration above zero, or None")
    register = functools.partial(
        _register, name=name, rerun=rerun, retry=check_policy(retry), timeout=seconds
    )
    return register if fn is None else register(fn)


def _register(fn: F, *, name: str | None, **options: Any) -> F:
    if not callable(fn):
        raise InvalidOption("fn", fn, "a function")
    function = DurableFunction(_name(fn, name), fn, **options)
    earlier = _by_name.get(function.name)
    # The same module and name again is a module that was loaded again: the newer function counts.
    if earlier is not None and _home(earlier.fn) != _home(fn):
        taken_by = ":".join(_home(earlier.fn))
        raise InvalidOption("name", function.name, f"a name that {taken_by} does not have")
    _by_name[function.name] = _by_function[fn] = function
    return fn


def _name(fn: Callable[..., Any], name: str | None) -> str:
    if name is not None:
        if not isinstance(name, str) or not name.strip() or has_controls(name):
            raise InvalidOption("name", name, "a non-empty string without control characters")
        return name
    qualname = getattr(fn, "__qualname__", "<no name>")
    if "<" in qualname:
        raise InvalidOption("fn", fn, "a function at the top of a module, or give it a name=")
    return f"{fn.__module__}:{qualname}"


def _home(fn: Callable[..., Any]) -> tuple[str, str]:
    return getattr(fn, "__module__", ""), getattr(fn, "__qualname__", "")


def durable_function_named(name: str) -> DurableFunction | None:
    """Return the function registered under *name*; None if there is none."""
    return _by_name.get(name)


def durable_names() -> list[str]:
    """Return the names of all functions that are registered now."""
    return [*_by_name]


def durable_function(fn: Callable[..., Any]) -> DurableFunction | None:
    """Return the registration of *fn*; None if it has none."""
    try:
        return _by_function.get(fn)
    except TypeError:  # an object that cannot be hashed is not a registered function
        return None


def split_call(
    closure: Callable[..., Any],
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """Return the function that *closure* calls, and the arguments that a `partial` gives it."""
    if isinstance(closure, functools.partial):
        return closure.func, closure.args, closure.keywords
    return closure, (), {}


def bound_call(
    function: DurableFunction, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> Callable[[], Any]:
    """Return *function* with arguments that were read from JSON; models become models again.

    Raises pydantic's `ValidationError` if they do not fit.
    """
    positional, keywords = types_of(function.fn).read(positional, keywords)
    return functools.partial(function.fn, *positional, **keywords)


def encode_call(
    function: DurableFunction, positional: Sequence[Any], keywords: Mapping[str, Any]
) -> bytes | None:
    """Write the arguments of a call of *function*; None if reading them back would change them.

    A pydantic model can be written where the function's parameter has its type.
    """
    written = encode_arguments(positional, keywords)
    return types_of(function.fn).encode(positional, keywords) if written is None else written


def encode_arguments(positional: Sequence[Any], keywords: Mapping[str, Any]) -> bytes | None:
    """Write the arguments of a call as JSON; return None if JSON would change them.

    >>> encode_arguments([7], {"dry": True})
    b'[[7],{"dry":true}]'
    """
    if not positional and not keywords:
        return b"[[],{}]"
    return to_exact_json([list(positional), dict(keywords)])
