"""pydantic's types, for a program that has pydantic: harn itself does not need it.

pydantic is imported only where a type is its own, so the program has imported it already.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from harn.error_text import message_of

HOMES = frozenset({"pydantic", "pydantic_core", "annotated_types"})


def is_model(value: object) -> bool:
    """Tell whether *value* is an instance of a pydantic model."""
    return hasattr(value, "model_dump") and not isinstance(value, type)


def mentions_pydantic(hint: Any) -> bool:
    """Tell whether a type hint has a model of pydantic, or a rule such as `Field(gt=0)`.

    >>> mentions_pydantic(list[int])
    False
    """
    kind = hint if isinstance(hint, type) else type(hint)
    if hasattr(hint, "__pydantic_validator__") or kind.__module__.partition(".")[0] in HOMES:
        return True
    return any(mentions_pydantic(each) for each in get_args(hint))


def adapter_of(hint: Any) -> Any:
    """Return pydantic's `TypeAdapter` of *hint*."""
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def as_json(value: Any) -> Any:
    """Return the JSON form of a model: the one that its `model_validate` reads.

    Raises `TypeError` for anything else, as an `enc_hook` of msgspec must.
    """
    if is_model(value):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"{type(value).__name__} is not JSON")


def read_json(adapter: Any, value: Any) -> Any:
    """Return *value*, which was read from JSON, as the type of *adapter*.

    Raises pydantic's `ValidationError`, which is a `ValueError`.
    """
    return adapter.validate_json(msgspec.json.encode(value))


def reasons(error: Exception) -> str:
    """Say what a `ValidationError` found, without addresses of web pages; else show *error*.

    >>> reasons(ValueError("no"))
    'no'
    """
    errors = getattr(error, "errors", None)
    if errors is None or type(error).__module__.partition(".")[0] != "pydantic_core":
        return message_of(error)
    found = errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or '$'}: {each['msg']}" for each in found)
