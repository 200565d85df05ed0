"""The pydantic models among the arguments and the result of a durable function.

A stored call is JSON. Where the function's annotation says that a parameter is a model, or is made
of models, the JSON becomes that model again before the function is called; the same holds for its
result. A model that the annotations do not name would come back as a dict, so it is refused.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from harn.pydantic_types import adapter_of, is_model, mentions_pydantic, read_json


class CallTypes:
    """The parameters of one function that contain models, and its result if it contains one."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        try:
            hints = typing.get_type_hints(fn, include_extras=True)
            self._signature = inspect.signature(fn)
        except (NameError, TypeError, ValueError, AttributeError):
            hints = {}  # a name that cannot be found, or a callable without a signature
        found = {name: hint for name, hint in hints.items() if mentions_pydantic(hint)}
        self._result = adapter_of(found.pop("return")) if "return" in found else None
        self._parameters = {name: adapter_of(hint) for name, hint in found.items()}
        self.has_parameters: bool = bool(self._parameters)
        """Whether a parameter is a model, or made of models."""
        self.has_result: bool = self._result is not None
        """Whether the result is a model, or made of models."""

    def encode(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> bytes | None:
        """Write arguments with models as JSON; None if reading them back would change them."""
        if not self._parameters:
            return None
        try:
            written = msgspec.json.encode([list(positional), dict(keywords)], enc_hook=_round_trip)
            again = self._bound(*msgspec.json.decode(written))
            before = self._signature.bind(*positional, **keywords)
        except (TypeError, ValueError, RecursionError):
            return None
        return written if again.arguments == before.arguments else None

    def read(
        self, positional: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return arguments that were read from JSON, with their models.

        Raises pydantic's `ValidationError` if they do not fit.
        """
        if not self._parameters:
            return positional, keywords
        bound = self._bound(positional, keywords)
        return bound.args, bound.kwargs

    def _bound(
        self, positional: Sequence[Any], keywords: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        bound = self._signature.bind(*positional, **keywords)
        for name in bound.arguments.keys() & self._parameters.keys():
            read = functools.partial(read_json, self._parameters[name])
            value, kind = bound.arguments[name], self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(map(read, value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {each: read(given) for each, given in value.items()}
            else:
                bound.arguments[name] = read(value)
        return bound

    def read_result(self, value: Any) -> Any:
        """Return a result that was read from JSON, as its model.

        Raises pydantic's `ValidationError` if it does not fit.
        """
        return value if self._result is None else read_json(self._result, value)


@functools.cache
def types_of(fn: Callable[..., Any]) -> CallTypes:
    """Return the `CallTypes` of *fn*; they are computed once."""
    return CallTypes(fn)


def without_models(value: Any) -> Any:
    """Return *value* with the JSON form in place of each model, also inside lists and dicts.

    >>> without_models([1, {"a": 2}])
    [1, {'a': 2}]
    """
    if type(value) is list:
        return [without_models(each) for each in value]
    if type(value) is dict:
        return {key: without_models(each) for key, each in value.items()}
    return value.model_dump(mode="json", by_alias=True) if is_model(value) else value


def _round_trip(value: Any) -> Any:
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"{type(value).__name__} is not JSON")
