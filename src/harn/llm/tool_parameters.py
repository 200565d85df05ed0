"""The parameters of a tool: a JSON Schema for the model, and a reader that checks its calls.

msgspec describes and reads them. It does not know pydantic's types and ignores its rules, so if a
parameter has one (a model, `Annotated[int, Field(gt=0)]`), pydantic describes and reads them all.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, get_args, get_origin

import msgspec

from harn.errors import InvalidOption
from harn.llm.schemas import TOO_DEEP, inline
from harn.pydantic_types import adapter_of, mentions_pydantic, reasons

RULES = (
    *("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length"),
    *("title", "description", "examples"),
)
"""The rules of msgspec's `Meta` that pydantic's `Field` has under the same names."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The *schema* of a tool's arguments, and *read* to check the JSON text of a call.

    *read* returns the arguments that the call has; it raises `ValueError` if they do not fit.
    """

    schema: dict[str, Any]
    read: Callable[[str], dict[str, Any]]


@dataclass(slots=True)
class _Signature:
    """The typed parameters of a function; a call may leave out those that are *optional*."""

    name: str
    hints: dict[str, Any] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    defaults: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """Defaults that are written as pydantic's `Field(3)`, which Python does not apply."""


def parameters_of(fn: Callable[..., Any], name: str) -> Parameters:
    """Return the parameters of *fn*; `InvalidOption` if it cannot be a tool."""
    signature = _signature(fn, name)
    try:
        if any(map(mentions_pydantic, signature.hints.values())):
            return _by_pydantic(signature)
        return _by_msgspec(signature)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidOption(
            "tools", name, f"parameters of types that JSON can carry ({error})"
        ) from None


def _signature(fn: Callable[..., Any], name: str) -> _Signature:
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise InvalidOption(
            "tools", name, f"types that can be found from its module ({error})"
        ) from None
    found = _Signature(name)
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidOption("tools", name, f"no *{parameter.name}: name each parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidOption("tools", name, f"{parameter.name} to be passed by name")
        if parameter.name not in hints:
            raise InvalidOption("tools", name, f"a type for its parameter {parameter.name}")
        _add(found, parameter, hints[parameter.name])
    return found


def _add(found: _Signature, parameter: inspect.Parameter, hint: Any) -> None:
    """Add *parameter*; `n: int = Field(3, gt=0)` means `Annotated[int, Field(gt=0)]` and 3."""
    default, name = parameter.default, parameter.name
    if mentions_pydantic(default) and hasattr(default, "is_required"):
        for rule in (*default.metadata, default.description):
            hint = hint if rule is None else Annotated[hint, rule]
        if not default.is_required():
            found.optional.add(name)
            found.defaults[name] = lambda: default.get_default(call_default_factory=True)
    elif default is not parameter.empty:
        found.optional.add(name)
    found.hints[name] = hint


def _by_msgspec(signature: _Signature) -> Parameters:
    required: list[Any] = []
    optional: list[Any] = []
    for name, hint in signature.hints.items():
        described = _described(hint, lambda text: msgspec.Meta(description=text))
        if name in signature.optional:
            # A field that the model leaves out is not passed, so Python's default applies.
            optional.append((name, described | msgspec.UnsetType, msgspec.UNSET))
        else:
            required.append((name, described))
    struct = msgspec.defstruct(
        signature.name, [*required, *optional], kw_only=True, forbid_unknown_fields=True
    )
    schema = inline(msgspec.json.schema(struct))
    schema.pop("title", None)
    decoder = msgspec.json.Decoder(struct)

    def read(text: str) -> dict[str, Any]:
        try:
            given = msgspec.structs.asdict(decoder.decode(text or "{}"))
        except RecursionError:
            raise ValueError(TOO_DEEP) from None
        return {name: value for name, value in given.items() if value is not msgspec.UNSET}

    return Parameters(schema, read)


def _by_pydantic(signature: _Signature) -> Parameters:
    from pydantic import ConfigDict, Field, ValidationError
    from typing_extensions import TypedDict

    def rule(note: Any) -> Any:
        if isinstance(note, msgspec.Meta):
            given = {name: getattr(note, name) for name in RULES}
            return Field(**{name: each for name, each in given.items() if each is not None})
        return Field(description=note)

    keys = {name: _described(hint, rule, msgspec.Meta) for name, hint in signature.hints.items()}
    for name in signature.optional:
        keys[name] = NotRequired[keys[name]]
    make_dict: Any = TypedDict
    shape = make_dict(signature.name, keys)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter = adapter_of(shape)
    schema = adapter.json_schema()
    schema.pop("title", None)

    def read(text: str) -> dict[str, Any]:
        try:
            given: dict[str, Any] = adapter.validate_json(text or "{}")
        except ValidationError as error:
            raise ValueError(reasons(error)) from None
        return {**{name: make() for name, make in signature.defaults.items()}, **given}

    return Parameters(schema, read)


def _described(hint: Any, rule: Callable[[Any], Any], *more: type) -> Any:
    """Return `Annotated[int, "how many"]` with *rule* in place of the text, and of *more*."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    for note in notes:
        kind = Annotated[kind, rule(note) if isinstance(note, (str, *more)) else note]
    return kind
