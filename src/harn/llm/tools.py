"""Python functions as tools: a schema from the signature, and calls checked against it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any, get_args, get_origin

import msgspec

from harn.errors import InvalidOption
from harn.llm.messages import ToolSpec
from harn.llm.schemas import inline


class Tool:
    """A function that a model may call: its description, and `arguments` to check a call."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name: str = _name(fn)
        self._struct = _parameters(fn, self.name)
        schema = inline(msgspec.json.schema(self._struct))
        schema.pop("title", None)
        self.spec: ToolSpec = ToolSpec(self.name, _description(fn), schema)

    def arguments(self, text: str) -> dict[str, Any]:
        """Return the arguments in the JSON *text*; raise `ValueError` if they do not fit."""
        found = msgspec.json.decode(text or "{}", type=self._struct)
        return {
            each: getattr(found, each)
            for each in self._struct.__struct_fields__
            if getattr(found, each) is not msgspec.UNSET
        }


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


def _parameters(fn: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    hints = typing.get_type_hints(fn, include_extras=True)
    fields: list[tuple[str, Any, Any]] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidOption("tools", name, f"no *{parameter.name}: name each parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidOption("tools", name, f"{parameter.name} to be passed by name")
        if parameter.name not in hints:
            raise InvalidOption("tools", name, f"a type for its parameter {parameter.name}")
        hint = _described(hints[parameter.name])
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint, msgspec.NODEFAULT))
        else:
            # A field that the model leaves out is not passed, so Python's default applies.
            fields.append((parameter.name, hint | msgspec.UnsetType, msgspec.UNSET))
    required = [(each, hint) for each, hint, default in fields if default is msgspec.NODEFAULT]
    optional = [each for each in fields if each[2] is not msgspec.NODEFAULT]
    try:
        return msgspec.defstruct(
            name, [*required, *optional], kw_only=True, forbid_unknown_fields=True
        )
    except TypeError as error:
        raise InvalidOption(
            "tools", name, f"parameters of types JSON can carry ({error})"
        ) from None


def _described(hint: Any) -> Any:
    """Return `Annotated[int, "how many"]` with the text as msgspec's description."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    text = next((note for note in notes if isinstance(note, str)), None)
    kept = [note for note in notes if not isinstance(note, str)]
    if text is not None:
        kept.append(msgspec.Meta(description=text))
    for note in kept:
        kind = Annotated[kind, note]
    return kind


def as_text(value: Any) -> str:
    """Return a tool's result as text for the model: text unchanged, other values as JSON."""
    if isinstance(value, str):
        return value
    try:
        return msgspec.json.encode(value).decode()
    except TypeError:
        return str(value)
