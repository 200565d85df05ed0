"""Bursts of statements: values come back as they were, errors end a burst and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from harn.storage.engines.postgres.arrays import array_types
from harn.storage.engines.postgres.libpq_pipeline import Pipeline


@pytest.fixture(params=[True, False], ids=["prepared", "plain"])
def pipeline(postgres_server: str, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        pipeline = Pipeline(connection, is_own=request.param)
        yield pipeline
        pipeline.finish()


def ask(pipeline: Pipeline, text: str, **params: Any) -> list[tuple[Any, ...]]:
    [result] = pipeline.run([(text, params)])
    return pipeline.rows(result)


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
def test_a_column_comes_back_as_it_was(pipeline: Pipeline, kind: str, values: list[Any]) -> None:
    text = f"SELECT * FROM unnest(%(column)s::{kind}[])"
    encoded = array_types(text)["column"](values)
    for _ in range(2):  # the second time it is prepared already
        assert [value for (value,) in ask(pipeline, text, column=encoded)] == values


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", -(2**63)),
        ("text", "ü%\U0001f600"),
        ("text", ""),
        ("bytea", b"\x00"),
        ("float8", 0.1),
        ("boolean", True),
        ("bigint", None),
    ],
)
def test_a_value_comes_back_as_it_was(pipeline: Pipeline, kind: str, value: Any) -> None:
    text = f"SELECT %(a)s::{kind}, 5 %% 3, %(a)s::{kind}"
    assert ask(pipeline, text, a=value) == [(value, 2, value)]


def test_one_text_serves_values_of_other_types(pipeline: Pipeline) -> None:
    text = "SELECT coalesce(%(a)s, 7)"
    assert [ask(pipeline, text, a=a) for a in (1, None, 2)] == [[(1,)], [(7,)], [(2,)]]


def test_a_burst_answers_in_order_and_prepares_a_text_once(pipeline: Pipeline) -> None:
    results = pipeline.run([("SELECT %(a)s::bigint", {"a": n}) for n in range(5)])

    assert [pipeline.rows(result) for result in results] == [[(n,)] for n in range(5)]
    names = ask(
        pipeline,
        "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE %(like)s",
        like="harn%",
    )
    assert names == [(2,)] or not pipeline.is_own


def test_an_error_ends_its_burst_and_leaves_the_connection_usable(pipeline: Pipeline) -> None:
    burst: list[tuple[str, dict[str, Any]]] = [
        ("BEGIN", {}),
        ("SELECT %(a)s::bigint", {"a": 1}),
        ("SELECT 1 / %(a)s", {"a": 0}),
        ("SELECT %(a)s::text", {"a": "never"}),
    ]
    with pytest.raises(psycopg.errors.DivisionByZero):
        pipeline.run(burst)

    pipeline.run([("ROLLBACK", {})])
    assert ask(pipeline, "SELECT %(a)s::bigint", a=2) == [(2,)]
    assert ask(pipeline, "SELECT %(a)s::text", a="now") == [("now",)]


def test_text_is_refused_rather_than_cut_at_a_nul(pipeline: Pipeline) -> None:
    with pytest.raises(psycopg.DataError):
        ask(pipeline, "SELECT %(a)s::text", a="a\0b")
    assert ask(pipeline, "SELECT %(a)s::text", a="ab") == [("ab",)]


def test_a_value_that_cannot_be_sent_leaves_no_trace(pipeline: Pipeline) -> None:
    burst = [("SELECT %(a)s::bigint", {"a": 1}), ("SELECT %(a)s::bigint", {"a": 2**63})]
    with pytest.raises(struct.error):
        pipeline.run(burst)
    assert ask(pipeline, "SELECT %(a)s::bigint", a=3) == [(3,)]


def test_a_burst_that_fills_both_directions_does_not_block(pipeline: Pipeline) -> None:
    large = b"x" * 4_000_000
    results = pipeline.run([("SELECT %(a)s::bytea", {"a": large})] * 5)
    assert [pipeline.rows(result) for result in results] == [[(large,)]] * 5


def test_a_lost_connection_is_an_operational_error(postgres_server: str) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        pipeline = Pipeline(connection, is_own=True)
        with pytest.raises(psycopg.OperationalError):
            ask(pipeline, "SELECT pg_terminate_backend(pg_backend_pid())")
        assert connection.closed


def test_only_arrays_of_known_types_are_encoded_here() -> None:
    text = "SELECT %(a)s::bigint[], %(b)s::json, %(c)s::uuid[], %(d)s::text"
    assert list(array_types(text)) == ["a"]


def test_what_comes_after_a_commit_may_fail_without_harm(pipeline: Pipeline) -> None:
    pipeline.run([("CREATE TEMP TABLE kept (n bigint)", {})])
    broken = ("SELECT 1 / %(zero)s", {"zero": 0})
    keep = "INSERT INTO kept VALUES (%(n)s)"
    results = pipeline.run(
        [("BEGIN", {}), (keep, {"n": 1}), ("COMMIT", {})], [broken, (keep, {"n": 2})]
    )
    assert len(results) == 3
    assert ask(pipeline, "SELECT n FROM kept") == [(1,)]
    assert pipeline.run([], [broken]) == []


def test_what_comes_after_a_commit_is_a_transaction_of_its_own(pipeline: Pipeline) -> None:
    text = "SELECT set_config('synchronous_commit', 'off', true), txid_current() > %(n)s"
    pipeline.run([("BEGIN", {}), ("COMMIT", {})], [(text, {"n": 0})])
    assert ask(pipeline, "SHOW synchronous_commit") == [("on",)]


def test_no_caller_waits_for_what_comes_after_a_commit(postgres_server: str) -> None:
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        pipeline = Pipeline(connection, is_own=True)
        with psycopg.connect(postgres_server) as other:
            other.execute("SELECT pg_advisory_xact_lock(4711)")
            later = ("SELECT pg_advisory_xact_lock(%(key)s)", {"key": 4711})
            [result] = pipeline.run([("SELECT %(a)s::bigint", {"a": 1})], [later])
            assert pipeline.rows(result) == [(1,)]  # although the lock is held
        assert ask(pipeline, "SELECT %(a)s::bigint", a=2) == [(2,)]

        pipeline.run([("SELECT 1", {})], [later])
        pipeline.finish()
        assert connection.execute("SELECT 3").fetchall() == [(3,)]
