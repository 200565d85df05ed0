"""Structured answers: check an answer against a JSON Schema or a Python type.

msgspec decodes its own types, dataclasses and every other type that it knows; a pydantic model
decodes itself; a plain JSON Schema is checked here. Only the keywords that model providers accept
are checked; all others are sent to the provider and ignored here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from harn.checks import is_number
from harn.errors import InvalidOption

DEEPEST = 64


class Unacceptable(Exception):
    """The answer does not fit; the message tells the model where."""


class Shape:
    """The form of an answer: its *schema*, and *read* to check a text and return the value."""

    def __init__(self, schema: dict[str, Any], read: Callable[[str], Any]) -> None:
        self.schema = schema
        self.read = read


def shape_of(wanted: Any) -> Shape:
    """Return the `Shape` of a JSON Schema or a type.

    >>> shape_of({"type": "object", "required": ["a"]}).read('{"a": 1}')
    {'a': 1}
    """
    if isinstance(wanted, Mapping):
        return Shape(dict(wanted), lambda text: _checked(text, wanted))
    if hasattr(wanted, "model_json_schema") and hasattr(wanted, "model_validate_json"):
        return Shape(wanted.model_json_schema(), lambda text: _pydantic(wanted, text))
    try:
        schema = inline(msgspec.json.schema(wanted))
        decoder = msgspec.json.Decoder(wanted)
    except (TypeError, ValueError) as error:
        raise InvalidOption(
            "schema", wanted, f"a JSON Schema, a msgspec type or a pydantic model ({error})"
        ) from None
    return Shape(schema, lambda text: _msgspec(decoder, text))


def inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that is only a `$ref` with its definition at the top, as providers need."""
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    definitions = schema.get("$defs", {})
    top = dict(definitions[reference.rsplit("/", 1)[-1]])
    rest = {name: each for name, each in definitions.items() if not reference.endswith(f"/{name}")}
    return {**top, "$defs": rest} if rest else top


def strip_fence(text: str) -> str:
    """Return the JSON inside a Markdown fence, which models often add, or *text* itself."""
    match = re.fullmatch(r"\s*```(?:json)?\s*\n(.*)\n```\s*", text, re.DOTALL)
    return match[1] if match else text


def _msgspec(decoder: msgspec.json.Decoder[Any], text: str) -> Any:
    try:
        return decoder.decode(strip_fence(text))
    except msgspec.MsgspecError as error:
        raise Unacceptable(str(error)) from None


def _pydantic(model: Any, text: str) -> Any:
    try:
        return model.model_validate_json(strip_fence(text))
    except ValueError as error:  # pydantic's ValidationError is one
        raise Unacceptable(str(error)) from None


def _checked(text: str, schema: Mapping[str, Any]) -> Any:
    try:
        value = msgspec.json.decode(strip_fence(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unacceptable(f"not JSON: {error}") from None
    check(value, schema)
    return value


def check(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise `Unacceptable` unless *value* fits *schema*.

    >>> check({"n": 3}, {"properties": {"n": {"type": "integer", "minimum": 1}}})
    """
    _Checker(schema).check(value, schema, "$", 0)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: is_number(value) and float(value).is_integer(),
    "number": is_number,
}


class _Checker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def check(self, value: Any, schema: Any, at: str, depth: int) -> None:
        if depth > DEEPEST:
            raise Unacceptable(f"{at}: nested too deeply")
        if schema is True or schema == {}:
            return
        if schema is False:
            raise Unacceptable(f"{at}: nothing is allowed here")
        if "$ref" in schema:
            self.check(value, self._resolved(schema["$ref"]), at, depth + 1)
        self._check_kind(value, schema, at)
        self._check_choices(value, schema, at, depth)
        if isinstance(value, dict):
            self._check_object(value, schema, at, depth)
        elif isinstance(value, list):
            self._check_array(value, schema, at, depth)
        elif isinstance(value, str):
            _check_range(len(value), schema, at, "minLength", "maxLength", "characters")
        elif is_number(value):
            _check_range(value, schema, at, "minimum", "maximum", "")

    def _resolved(self, reference: str) -> Any:
        found: Any = self._root
        try:
            for part in reference.removeprefix("#").split("/")[1:]:
                found = found[part.replace("~1", "/").replace("~0", "~")]
        except (KeyError, TypeError):
            raise InvalidOption("schema", reference, "a $ref to something in it") from None
        return found

    def _check_kind(self, value: Any, schema: Mapping[str, Any], at: str) -> None:
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if kinds and not any(_TYPES[kind](value) for kind in kinds if kind in _TYPES):
            raise Unacceptable(f"{at}: expected {' or '.join(kinds)}")
        if "enum" in schema and value not in schema["enum"]:
            raise Unacceptable(f"{at}: expected one of {schema['enum']}")
        if "const" in schema and value != schema["const"]:
            raise Unacceptable(f"{at}: expected {schema['const']!r}")

    def _check_choices(self, value: Any, schema: Mapping[str, Any], at: str, depth: int) -> None:
        for part in schema.get("allOf", ()):
            self.check(value, part, at, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                fitting = sum(self._fits(value, part, at, depth) for part in schema[keyword])
                if fitting == 0 or (keyword == "oneOf" and fitting > 1):
                    raise Unacceptable(f"{at}: fits {fitting} of the {keyword} forms")

    def _fits(self, value: Any, schema: Any, at: str, depth: int) -> bool:
        try:
            self.check(value, schema, at, depth + 1)
        except Unacceptable:
            return False
        return True

    def _check_object(
        self, value: dict[str, Any], schema: Mapping[str, Any], at: str, depth: int
    ) -> None:
        for name in schema.get("required", ()):
            if name not in value:
                raise Unacceptable(f"{at}: {name!r} is missing")
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties", True)
        for name, each in value.items():
            if name in known:
                self.check(each, known[name], f"{at}.{name}", depth + 1)
            elif extra is False:
                raise Unacceptable(f"{at}: {name!r} is not expected")
            elif isinstance(extra, Mapping):
                self.check(each, extra, f"{at}.{name}", depth + 1)

    def _check_array(
        self, value: list[Any], schema: Mapping[str, Any], at: str, depth: int
    ) -> None:
        _check_range(len(value), schema, at, "minItems", "maxItems", "items")
        if "items" in schema:
            for index, each in enumerate(value):
                self.check(each, schema["items"], f"{at}[{index}]", depth + 1)


def _check_range(
    size: float, schema: Mapping[str, Any], at: str, least: str, most: str, unit: str
) -> None:
    if least in schema and size < schema[least]:
        raise Unacceptable(f"{at}: at least {schema[least]} {unit}".rstrip())
    if most in schema and size > schema[most]:
        raise Unacceptable(f"{at}: at most {schema[most]} {unit}".rstrip())
