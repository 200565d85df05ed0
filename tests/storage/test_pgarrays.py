"""Columns written as binary arrays come back as they were."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from harn.storage.pgarrays import array_types, register


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [1, -1, 2**63 - 1, -(2**63)]),
        ("bigint", [None, 7, None]),
        ("smallint", [0, 5, -32768, None]),
        ("text", ["", "a", "ü\U0001f600", None, "NULL", '{"a,b"}']),
        ("bytea", [b"", b"\x00\xff", None, b"x" * 100_000]),
        ("text", [None]),
        ("bytea", []),
        ("bigint", []),
    ],
)
def test_a_column_comes_back_as_it_was(postgres_server: str, kind: str, values: list[Any]) -> None:
    text = f"SELECT * FROM unnest(%(column)s::{kind}[])"
    with psycopg.connect(postgres_server) as connection:
        register(connection.adapters)
        encoded = array_types(text)["column"](values)
        rows = connection.execute(text, {"column": encoded}, binary=True).fetchall()
    assert [value for (value,) in rows] == values


def test_only_arrays_of_known_types_are_encoded_here() -> None:
    text = "SELECT %(a)s::bigint[], %(b)s::json, %(c)s::uuid[], %(d)s::text"
    assert list(array_types(text)) == ["a"]
