from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

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


async def test_agent_loop_names_itself_when_an_option_is_unknown() -> None:
    with pytest.raises(TypeError, match=r"agent_loop\(\).*'max_token'.*max_tokens"):
        await agent_loop("hello", max_token=5)  # type: ignore[call-arg]


async def test_without_a_provider_the_error_names_the_way_to_register_one(runtime: Runtime) -> None:
    with pytest.raises(InvalidOption, match=r"llm_provider\("):
        await agent_loop("hello")
