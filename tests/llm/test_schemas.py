from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from harn import InvalidOption
from harn.llm.schemas import Unacceptable, check, shape_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "next": {"$ref": "#/$defs/link"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"link": {"anyOf": [{"type": "null"}, {"type": "string"}]}},
}


@pytest.mark.parametrize(
    "value",
    [
        {"name": "Ada"},
        {"name": "Ada", "age": 36.0, "tags": ["a"], "next": None},
        {"name": "Ada", "next": "x"},
    ],
)
def test_what_fits_is_accepted_as_it_is(value: dict[str, Any]) -> None:
    before = copy.deepcopy(value)

    check(value, PERSON)

    assert value == before


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({}, "'name' is missing"),
        ({"name": ""}, r"\$.name: at least 1"),
        ({"name": 5}, r"\$.name: expected string"),
        ({"name": "x", "age": True}, r"\$.age: expected integer"),
        ({"name": "x", "age": 1.5}, r"\$.age: expected integer"),
        ({"name": "x", "age": 200}, "at most 150"),
        ({"name": "x", "tags": ["c"]}, r"\$.tags\[0\]: expected one of"),
        ({"name": "x", "tags": ["a", "a", "b"]}, "at most 2 items"),
        ({"name": "x", "more": 1}, "'more' is not expected"),
        ({"name": "x", "next": 5}, "fits 0 of the anyOf"),
        ([], "expected object"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(Unacceptable, match=where):
        check(value, PERSON)


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"$ref": "#"}
    with pytest.raises(Unacceptable, match="too deeply"):
        check(1, schema)


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclass
class Plain:
    word: str


class LooksLikePydantic:
    def __init__(self, word: str) -> None:
        self.word = word

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"word": {"type": "string"}}}

    @classmethod
    def model_validate_json(cls, text: str) -> LooksLikePydantic:
        found = msgspec.json.decode(text)
        if "word" not in found:
            raise ValueError("word: Field required")
        return cls(found["word"])


def test_types_become_schemas_and_values() -> None:
    point = shape_of(Point)

    assert point.schema["properties"]["x"] == {"type": "integer"}
    assert point.read('{"x": 1}') == Point(1)
    assert point.read('```json\n{"x": 1, "y": 2}\n```') == Point(1, 2)
    assert shape_of(Plain).read('{"word": "hi"}') == Plain("hi")
    assert shape_of(LooksLikePydantic).read('{"word": "hi"}').word == "hi"
    assert shape_of(list[int]).read("[1, 2]") == [1, 2]


@pytest.mark.parametrize("wanted", [Point, LooksLikePydantic, {"required": ["word"]}])
@pytest.mark.parametrize("text", ["{}", "not json", "[" * 100_000])
def test_a_bad_answer_is_unacceptable_and_nothing_else(wanted: Any, text: str) -> None:
    if wanted is LooksLikePydantic and text != "{}":
        text = "{}"
    with pytest.raises(Unacceptable):
        shape_of(wanted).read(text)


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidOption, match="schema"):
        shape_of(5)
