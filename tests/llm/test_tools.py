from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field

from harn import InvalidOption, Runtime, agent_loop
from harn.llm.tools import Tool, as_text, tools_of


def search(
    query: Annotated[str, "what to look for"],
    limit: int = 10,
    order: Literal["new", "old"] = "new",
) -> list[str]:
    """Search the archive.

    Newest first unless told otherwise.
    """
    return [query] * limit


def test_the_signature_and_the_docstring_become_the_description() -> None:
    spec = Tool(search).spec

    assert spec.name == "search"
    assert spec.description.startswith("Search the archive.")
    assert spec.parameters["required"] == ["query"]
    assert spec.parameters["properties"]["query"] == {
        "type": "string",
        "description": "what to look for",
    }
    assert spec.parameters["properties"]["order"]["enum"] == ["new", "old"]


def test_a_call_is_checked_and_pythons_defaults_apply() -> None:
    assert Tool(search).arguments('{"query": "x"}') == {"query": "x"}
    assert Tool(search).arguments('{"query": "x", "limit": 2}') == {"query": "x", "limit": 2}


@pytest.mark.parametrize(
    "text",
    ['{"query": 5}', "{}", '{"query": "x", "order": "best"}', '{"query":"x","z":1}', "[", ""],
)
def test_a_call_that_does_not_fit_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Tool(search).arguments(text)


def test_arguments_that_are_nested_too_deeply_are_a_value_error() -> None:
    def take(value: Any) -> None: ...

    with pytest.raises(ValueError, match="too deeply"):
        Tool(take).arguments(f'{{"value": {"[" * 100_000}')


def untyped(a): ...  # type: ignore[no-untyped-def]  # what the test is about
def starred(*args: int) -> None: ...


@pytest.mark.parametrize("fn", [untyped, starred, lambda: 1, 5])
def test_a_function_that_cannot_be_described_is_refused_by_name(fn: Any) -> None:
    with pytest.raises(InvalidOption, match="tools"):
        tools_of([fn])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidOption, match="search"):
        tools_of([search, search])


def test_results_are_written_for_the_model() -> None:
    assert as_text("plain") == "plain"
    assert as_text({"a": [1]}) == '{"a":[1]}'
    assert as_text(None) == "null"
    assert as_text(object).startswith("<class")
    assert as_text("file \udc80") == "file ?"
    assert as_text(["file \udc80"]) == "['file \\udc80']"


async def test_agent_loop_names_itself_when_an_option_is_unknown() -> None:
    with pytest.raises(TypeError, match=r"agent_loop\(\).*'max_token'.*max_tokens"):
        await agent_loop("hello", max_token=5)  # type: ignore[call-arg]


async def test_without_a_provider_the_error_names_the_way_to_register_one(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match=r"llm_provider\("):
        await agent_loop("hello")


# pydantic's types.


class Place(BaseModel):
    """A place on the map."""

    model_config = ConfigDict(extra="forbid")

    city: str = Field(alias="City", description="its name")
    zip_code: Annotated[str, Field(pattern=r"^\d{5}$")] = "00000"


class Forecast(BaseModel):
    place: Place
    at: datetime


def forecast(
    place: Place,
    days: Annotated[int, Field(gt=0, le=14, description="how many days")] = 3,
    note: Annotated[str, "a remark"] = "",
) -> Forecast:
    """Tell the weather."""
    return Forecast(place=place, at=datetime(2026, 1, 1, tzinfo=UTC))


def test_a_pydantic_model_and_its_rules_are_in_the_schema() -> None:
    schema = Tool(forecast).spec.parameters

    assert schema["required"] == ["place"]
    assert schema["additionalProperties"] is False
    days = schema["properties"]["days"]
    assert days["type"] == "integer"
    assert (days["exclusiveMinimum"], days["maximum"]) == (0, 14)
    assert days["description"] == "how many days"
    assert schema["properties"]["note"]["description"] == "a remark"
    assert schema["$defs"]["Place"]["properties"]["City"]["description"] == "its name"


def test_a_pydantic_parameter_arrives_as_its_model() -> None:
    given = Tool(forecast).arguments('{"place": {"City": "Ulm"}, "days": 2}')

    assert given == {"place": Place(City="Ulm"), "days": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"place": {"City": "Ulm"}, "days": 0}', "days: Input should be greater than 0"),
        ('{"place": {"City": "Ulm", "zip_code": "x"}}', "place.zip_code: String should match"),
        ('{"place": {}}', "place.City: Field required"),
        ("{}", "place: Field required"),
        ('{"place": {"City": "Ulm"}, "z": 1}', "z: Extra inputs"),
        ("[", "JSON"),
    ],
)
def test_the_rules_of_pydantic_are_enforced(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        Tool(forecast).arguments(text)

    assert "https://" not in str(raised.value)


def test_a_field_with_a_default_is_read_as_in_a_web_framework() -> None:
    def wait(seconds: int = Field(5, gt=0, description="how long"), why: str = Field()) -> None: ...

    tool = Tool(wait)

    assert tool.spec.parameters["required"] == ["why"]
    assert tool.spec.parameters["properties"]["seconds"]["description"] == "how long"
    assert tool.arguments('{"why": "x"}') == {"seconds": 5, "why": "x"}
    with pytest.raises(ValueError, match="greater than 0"):
        tool.arguments('{"why": "x", "seconds": 0}')


def test_names_that_pydantic_uses_itself_are_fine_as_parameters() -> None:
    def convert(
        schema: Annotated[str, Field(min_length=1)], model_name: str, copy: int
    ) -> None: ...

    given = '{"schema": "a", "model_name": "b", "copy": 1}'

    assert Tool(convert).arguments(given) == {"schema": "a", "model_name": "b", "copy": 1}


def test_rules_of_msgspec_hold_beside_pydantics() -> None:
    def pick(place: Place, n: Annotated[int, msgspec.Meta(ge=1, description="which")]) -> None: ...

    assert Tool(pick).spec.parameters["properties"]["n"]["minimum"] == 1
    with pytest.raises(ValueError, match="n: Input should be greater than or equal to 1"):
        Tool(pick).arguments('{"place": {"City": "Ulm"}, "n": 0}')


def test_a_pydantic_result_is_json_with_the_names_that_its_model_reads() -> None:
    result = forecast(Place(City="Ulm"))

    text = as_text(result)

    assert Forecast.model_validate_json(text) == result
    assert msgspec.json.decode(as_text([result, None])) == [msgspec.json.decode(text), None]


class Opaque:
    """A class that JSON cannot carry."""


def odd(thing: Opaque) -> None: ...
def unfound(thing: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(("fn", "said"), [(odd, "JSON can carry"), (unfound, "'Missing'")])
def test_a_parameter_that_json_cannot_carry_is_refused_by_name(fn: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        Tool(fn)
