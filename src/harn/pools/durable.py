"""`@durable`: functions that a journal may name.

A journal holds data, never code. What it may name is in this registry, filled by the decorator
when your modules are imported; a name that is not here runs nothing.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from harn.errors import InvalidOption
from harn.pools.journal_records import as_json, from_json, shown

F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("harn.pools")


@dataclass(frozen=True, slots=True)
class Durable:
    """A registered function; with *rerun* it may run again after it was interrupted."""

    name: str
    fn: Callable[..., Any]
    rerun: bool


_by_name: dict[str, Durable] = {}
_by_function: dict[Callable[..., Any], Durable] = {}


@overload
def durable(fn: F, /) -> F: ...
@overload
def durable(*, name: str | None = None, rerun: bool = False) -> Callable[[F], F]: ...
def durable(fn: F | None = None, /, *, name: str | None = None, rerun: bool = False) -> Any:
    """Let pipeline pools journal calls of this function and resume them after a restart.

    It is registered as `module:qualname`, or under *name*, which must stay the same from one run
    to the next. Submit it as `functools.partial(fn, ...)` with JSON arguments. A call that was
    queued when the process ended is queued again; one that was running has failed, unless
    *rerun* says that it may run twice.

    >>> @durable(name="docs:report", rerun=True)
    ... def report(customer: str) -> str:
    ...     return f"report for {customer}"
    >>> report("acme")
    'report for acme'
    """
    if fn is None:
        return functools.partial(_register, name=name, rerun=rerun)
    return _register(fn, name=name, rerun=rerun)


def _register(fn: F, *, name: str | None, rerun: bool) -> F:
    if not callable(fn):
        raise InvalidOption("fn", fn, "a function")
    if not isinstance(rerun, bool):
        raise InvalidOption("rerun", rerun, "True or False")
    entry = Durable(_name(fn, name), fn, rerun)
    earlier = _by_name.get(entry.name)
    if earlier is not None and _home(earlier.fn) != _home(fn):
        raise InvalidOption("name", entry.name, f"a name that {shown(earlier.fn)} does not have")
    _by_name[entry.name] = _by_function[fn] = entry
    return fn


def _name(fn: Callable[..., Any], name: str | None) -> str:
    if name is not None:
        if not isinstance(name, str) or not name.strip():
            raise InvalidOption("name", name, "a non-empty string")
        return name
    qualname = getattr(fn, "__qualname__", "<no name>")
    if "<" in qualname:
        raise InvalidOption("fn", fn, "a function at the top of a module, or give it a name=")
    return f"{fn.__module__}:{qualname}"


def _home(fn: Callable[..., Any]) -> tuple[str, str]:
    return getattr(fn, "__module__", ""), getattr(fn, "__qualname__", "")


def registered(name: str) -> Durable | None:
    """Return the function registered under *name*."""
    return _by_name.get(name)


def registered_function(fn: Callable[..., Any]) -> Durable | None:
    """Return how *fn* itself is registered."""
    try:
        return _by_function.get(fn)
    except TypeError:  # an object that cannot be hashed is no registered function
        return None


def durable_call(fn: Callable[..., Any]) -> tuple[Durable, bytes] | None:
    """Take a submitted closure apart into a durable function and its arguments, as JSON.

    None for every other closure, and for arguments that JSON would not bring back as they are.
    """
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if isinstance(fn, functools.partial):
        args, keywords = fn.args, fn.keywords
        fn = fn.func
    entry = registered_function(fn)
    if entry is None:
        return None
    written = as_json([list(args), dict(keywords)])
    if written is None:
        logger.warning("%s: its arguments are not JSON, so this call is not durable", entry.name)
        return None
    return entry, written


def recall(entry: Durable, args: bytes) -> Callable[[], Any]:
    """Put a journalled call together again."""
    positional, keywords = from_json(args)
    return functools.partial(entry.fn, *positional, **keywords)
