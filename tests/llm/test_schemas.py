from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel, Field

from harn import InvalidOption
from harn.llm.schemas import Unacceptable, check, shape_of

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {
            "type": "array",
            "items": {"enum": ["a", "b"]},
            "maxItems": 2,
            "uniqueItems": True,
        },
        "code": {"type": "string", "pattern": "^[A-Z]{3}$"},
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
        ({}, r"\$: 'name' is a required property"),
        ({"name": ""}, r"\$.name: '' should be non-empty"),
        ({"name": 5}, r"\$.name: 5 is not of type 'string'"),
        ({"name": "x", "age": True}, r"\$.age: True is not of type 'integer'"),
        ({"name": "x", "age": 1.5}, r"\$.age: 1.5 is not of type 'integer'"),
        ({"name": "x", "age": 200}, "200 is greater than the maximum of 150"),
        ({"name": "x", "tags": ["c"]}, r"\$.tags\[0\]: 'c' is not one of \['a', 'b'\]"),
        ({"name": "x", "tags": ["a", "a", "b"]}, "is too long"),
        ({"name": "x", "tags": ["a", "a"]}, "non-unique"),
        ({"name": "x", "code": "7"}, r"\$.code: '7' does not match"),
        ({"name": "x", "more": 1}, "'more' was unexpected"),
        ({"name": "x", "next": 5}, r"\$.next: 5 is not (valid|of type)"),
        ({"name": "", "age": -1}, r"\$.name: .*; \$.age: "),
        ([], "is not of type 'object'"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(value: Any, where: str) -> None:
    with pytest.raises(Unacceptable, match=where):
        check(value, PERSON)


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"$ref": "#"}
    with pytest.raises(Unacceptable, match="too deeply"):
        check(1, schema)


@pytest.mark.parametrize(
    "schema", [{"type": "objekt"}, {"properties": []}, {"minimum": "1"}, {"required": "a"}]
)
def test_what_is_no_json_schema_is_refused_before_a_model_is_asked(schema: Any) -> None:
    with pytest.raises(InvalidOption, match="a JSON Schema"):
        shape_of(schema)


@pytest.mark.parametrize("ref", ["#/$defs/missing", "https://example.com/schema.json"])
def test_a_reference_to_something_else_is_refused_and_not_fetched(
    ref: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_: pytest.fail("a connection"))

    with pytest.raises(InvalidOption, match=r"\$ref"):
        check({"a": 1}, {"properties": {"a": {"$ref": ref}}})


def test_a_long_answer_is_not_repeated_to_the_model() -> None:
    with pytest.raises(Unacceptable) as raised:
        check("x" * 10_000, {"type": "integer"})

    assert len(str(raised.value)) < 400


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)

    with pytest.raises(InvalidOption, match=r"harn-runtime\[llm\]"):
        shape_of({"type": "object"})


class Place(BaseModel):
    city: Annotated[str, Field(min_length=1)]


def test_pydantic_reads_its_models_and_what_is_made_of_them() -> None:
    assert shape_of(Place).read('{"city": "Ulm"}') == Place(city="Ulm")
    assert shape_of(list[Place]).read('[{"city": "Ulm"}]') == [Place(city="Ulm")]
    assert shape_of(list[Place]).schema["items"] == {"$ref": "#/$defs/Place"}
    with pytest.raises(Unacceptable, match=r"^0.city: String should have at least 1 character$"):
        shape_of(list[Place]).read('[{"city": ""}]')


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


def test_an_answer_that_is_nested_too_deeply_is_unacceptable() -> None:
    with pytest.raises(Unacceptable, match="too deeply"):
        shape_of(dict[str, Any]).read('{"a": ' + "[" * 100_000)


def test_something_else_is_refused() -> None:
    with pytest.raises(InvalidOption, match="schema"):
        shape_of(5)
