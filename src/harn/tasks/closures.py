"""What a pool may run: a function with the arguments of its submit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from harn.tasks.callables import check_callable

_ANY_NUMBER = inspect.CO_VARARGS


def closure_of(fn: Callable[..., Any], args: Sequence[Any] = ()) -> Callable[[], Any]:
    """Return a function that calls *fn* with *args*; raise `TypeError` now if they do not fit."""
    # Nearly every submit gives a plain function as many arguments as it has parameters.
    if (
        type(fn) is not FunctionType
        or (code := fn.__code__).co_argcount != len(args)
        or code.co_kwonlyargcount
        or code.co_flags & _ANY_NUMBER
    ):
        check_arguments(fn, args)
    return functools.partial(fn, *args) if args else fn


def check_arguments(fn: Callable[..., Any], args: Sequence[Any]) -> None:
    """Raise `TypeError` if *fn* cannot be called with *args*.

    A built-in function whose signature is unknown is not checked.
    """
    if not _fits_at_a_glance(fn, len(args)):
        _check_fit(check_callable(fn), args)


def _fits_at_a_glance(fn: Callable[..., Any], count: int) -> bool:
    """Tell whether *count* arguments fit; false also if only `inspect` can tell."""
    if type(fn) is not FunctionType:
        if not isinstance(fn, functools.partial) or fn.keywords:
            return False
        count, fn = count + len(fn.args), fn.func
        if type(fn) is not FunctionType:
            return False
    code = fn.__code__
    if code.co_kwonlyargcount or (code.co_flags & _ANY_NUMBER and hasattr(fn, "__wrapped__")):
        return False  # only the function that it wraps shows what such a wrapper takes
    most = code.co_argcount
    return count == most or most - len(fn.__defaults__ or ()) <= count < most


def _check_fit(fn: Callable[..., Any], args: Sequence[Any]) -> None:
    keywords: dict[str, Any] = {}
    while isinstance(fn, functools.partial):
        args, keywords = (*fn.args, *args), {**fn.keywords, **keywords}
        fn = fn.func
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        name = getattr(fn, "__qualname__", None) or repr(fn)
        raise TypeError(_advice(name, signature, args, str(error))) from None


def _advice(name: str, signature: inspect.Signature, args: Sequence[Any], problem: str) -> str:
    if args and not signature.parameters:
        return (
            f"{name} takes no arguments, and submit was given {len(args)} for it; "
            "options are keywords: submit(fn, priority=10)"
        )
    return f"{name}{signature} cannot be called like this: {problem}; give submit(fn, *args)"
