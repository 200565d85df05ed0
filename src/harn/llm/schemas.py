"""Structured answers: check an answer against a JSON Schema or a Python type.

msgspec decodes its own types, dataclasses and every other type that it knows; pydantic decodes its
models and what is made of them; a plain JSON Schema is checked by the jsonschema package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from harn.errors import InvalidOption
from harn.pydantic_types import adapter_of, mentions_pydantic, reasons

MOST_FAULTS = 5
"""How many faults of an answer the model is told."""
LONGEST_FAULT = 300
TOO_DEEP = "nested too deeply"


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
        checker = _Checker(wanted)
        return Shape(dict(wanted), lambda text: _checked(text, checker))
    if hasattr(wanted, "model_json_schema") and hasattr(wanted, "model_validate_json"):
        return Shape(wanted.model_json_schema(), partial(_pydantic, wanted.model_validate_json))
    if mentions_pydantic(wanted):
        adapter = adapter_of(wanted)
        return Shape(adapter.json_schema(), partial(_pydantic, adapter.validate_json))
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
    except RecursionError:
        raise Unacceptable(TOO_DEEP) from None


def _pydantic(validate: Callable[[str], Any], text: str) -> Any:
    try:
        return validate(strip_fence(text))
    except ValueError as error:  # pydantic's ValidationError is one
        raise Unacceptable(reasons(error)) from None


def _checked(text: str, checker: _Checker) -> Any:
    try:
        value = msgspec.json.decode(strip_fence(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unacceptable(f"not JSON: {error}") from None
    checker.check(value)
    return value


def check(value: Any, schema: Mapping[str, Any]) -> None:
    """Raise `Unacceptable` unless *value* fits *schema*, `InvalidOption` if that is no JSON Schema.

    >>> check({"n": 3}, {"properties": {"n": {"type": "integer", "minimum": 1}}})
    """
    _Checker(schema).check(value)


class _Checker:
    """A JSON Schema, checked by the jsonschema package; a `$ref` never opens a connection."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        jsonschema = _jsonschema()
        from jsonschema_specifications import REGISTRY

        kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise InvalidOption(
                "schema", schema, f"a JSON Schema ({error.json_path}: {_shortened(error.message)})"
            ) from None
        self._validator = kind(schema, registry=REGISTRY)

    def check(self, value: Any) -> None:
        from jsonschema.exceptions import best_match
        from referencing.exceptions import Unresolvable

        try:
            found = list(islice(self._validator.iter_errors(value), MOST_FAULTS))
            faults = [best_match([error]) for error in found]
        except Unresolvable as error:
            raise InvalidOption("schema", error.ref, "a $ref to something in it") from None
        except RecursionError:
            raise Unacceptable(f"$: {TOO_DEEP}") from None
        if faults:
            told = (f"{fault.json_path}: {_shortened(fault.message)}" for fault in faults)
            raise Unacceptable("; ".join(told))


def _jsonschema() -> Any:
    try:
        import jsonschema  # here, because it takes as long to import as the rest of harn
    except ImportError:
        raise InvalidOption(
            "schema",
            "a JSON Schema",
            "a Python type, or install the package jsonschema: pip install 'harn-runtime[llm]'",
        ) from None
    return jsonschema


def _shortened(message: str) -> str:
    return message if len(message) <= LONGEST_FAULT else f"{message[: LONGEST_FAULT - 3]}..."
