"""Python functions as tools: a schema from the signature, and calls checked against it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from harn.errors import InvalidOption
from harn.llm.messages import ToolSpec
from harn.llm.tool_parameters import parameters_of
from harn.pydantic_types import as_json


class Tool:
    """A function that a model may call: its description, and `arguments` to check a call."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name: str = _name(fn)
        self._parameters = parameters_of(fn, self.name)
        self.spec: ToolSpec = ToolSpec(self.name, _description(fn), self._parameters.schema)

    def arguments(self, text: str) -> dict[str, Any]:
        """Return the arguments in the JSON *text*; raise `ValueError` if they do not fit."""
        return self._parameters.read(text)


def tools_of(functions: Iterable[Callable[..., Any] | Tool]) -> dict[str, Tool]:
    """Return *functions* as tools, by name.

    >>> def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    >>> tools_of([add])["add"].arguments('{"a": 2}')
    {'a': 2}
    """
    found: dict[str, Tool] = {}
    for each in functions:
        tool = each if isinstance(each, Tool) else Tool(each)
        if tool.name in found:
            raise InvalidOption("tools", tool.name, "functions of different names")
        found[tool.name] = tool
    return found


def _name(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", None)
    if not callable(fn) or not name or name == "<lambda>":
        raise InvalidOption("tools", fn, "functions with a name, typed parameters and a docstring")
    return str(name)


def _description(fn: Callable[..., Any]) -> str:
    return inspect.getdoc(fn) or ""


def as_text(value: Any) -> str:
    """Return a tool's result as text for the model: text unchanged, other values as JSON.

    pydantic models are JSON, too. What is not JSON is described by `str`. A lone surrogate, such as
    of a file name that is not UTF-8, becomes a question mark: no request can hold it.
    """
    if not isinstance(value, str):
        try:
            return msgspec.json.encode(value, enc_hook=as_json).decode()
        except (TypeError, ValueError):
            pass
    return str(value).encode("utf-8", "replace").decode()
