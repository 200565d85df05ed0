"""How the SQL files become statements: fragments, and one rule for a key's turn."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from harn.storage.fragments import Fragment, expand
from harn.storage.queries import Dialect, load_queries

FRAGMENTS = {
    "sum": Fragment(("left", "right"), "{left} + {right}"),
    "twice": Fragment(("it",), "{it} AND {it}"),
}
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("SELECT @sum(a, :b)", "SELECT a + :b"),
        ("SELECT @sum(a,\n    ?2)", "SELECT a + ?2"),
        (
            "SET x = @twice((SELECT y FROM z)), w = 1",
            "SET x = (SELECT y FROM z) AND (SELECT y FROM z), w = 1",
        ),
        ("SELECT @sum(max(a, b), c)", "SELECT max(a, b) + c"),
        ("SELECT @sum({right}, a)", "SELECT {right} + a"),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_a_fragment_stands_where_it_is_used(text: str, expanded: str) -> None:
    assert expand(text, FRAGMENTS) == expanded


@pytest.mark.parametrize("text", ["@none(a)", "@sum(a)", "@twice(a, b)"])
def test_an_unknown_fragment_or_a_wrong_number_of_arguments_is_an_error(text: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        expand(text, FRAGMENTS)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_statement_keeps_an_unexpanded_fragment(dialect: Dialect) -> None:
    assert [name for name, query in load_queries(dialect).items() if "@" in query.text] == []
    assert [name for name, query in load_queries(dialect).items() if "{ready}" in query.text] == []


@pytest.mark.parametrize("file", ["jobs.sql", "jobs.sqlite.sql", "jobs.postgres.sql"])
def test_a_keys_turn_and_credit_are_decided_in_fragments_only(file: str) -> None:
    text = (files("harn.storage") / "sql" / file).read_text("utf-8")

    statements = re.sub(r"^-- fragment: .*?(?=^-- name: |\Z)", "", text, flags=re.M | re.S)

    assert (
        re.findall(r"\b(?:turn|round|credit|deferred|deferred_from|idle_at) = CASE", statements)
        == []
    )
