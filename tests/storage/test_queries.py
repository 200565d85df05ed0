"""How the SQL files become statements: fragments, and one rule for a key's turn."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

import harn
from harn.storage.engines import migrate
from harn.storage.fragments import Fragment, expand
from harn.storage.queries import Dialect, Statements, load_queries
from harn.storage.queue import Share
from harn.storage.queue.job_index import JobRow
from harn.storage.queue.read_queue import QueueRow

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


@pytest.mark.parametrize(("fragment", "kind"), [("share", Share), ("job_row", JobRow)])
def test_a_row_is_read_in_the_order_of_its_columns(
    fragment: str, kind: type[Share] | type[JobRow]
) -> None:
    text = expand(f"@{fragment}(x)", Statements("sqlite")._fragments)

    columns = re.findall(r"x\.(\w+)", text)

    assert columns == [*kind.__struct_fields__[: len(columns)]] and len(columns) > 7


def test_a_queues_row_is_read_in_the_order_of_its_columns() -> None:
    text = load_queries("sqlite")["queue_row"].text

    columns = re.findall(r":?(\w+)(?=,|\s+FROM)", text)

    assert columns == [*QueueRow.__struct_fields__]


def test_every_plain_insert_of_sqlite_writes_many_rows_in_one_step() -> None:
    plain = re.compile(r"INSERT INTO \w+ \([^()]+\)\s*VALUES\s*\([?\d, ]+\)")
    every = load_queries("sqlite").every()
    inserts = [each for each in every.values() if plain.fullmatch(each.text)]

    assert "insert_jobs" in {name for name, each in every.items() if each.wide}
    assert [each.text for each in inserts if not each.wide] == []


def test_a_statement_is_made_ready_when_it_is_first_asked_for() -> None:
    queries = Statements("sqlite")
    assert not queries

    found = queries["tick"]

    assert list(queries) == ["tick"] and queries["tick"] is found
    assert queries.get("now") is queries["now"] and queries.get("no_such_statement") is None
    with pytest.raises(KeyError, match="no_such_statement"):
        queries["no_such_statement"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_statement_keeps_an_unexpanded_fragment(dialect: Dialect) -> None:
    every = load_queries(dialect).every()

    assert [name for name, query in every.items() if "@" in query.text] == []
    assert [name for name, query in every.items() if "{ready}" in query.text] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_asked_for(dialect: Dialect) -> None:
    home = Path(harn.__file__).parent
    answers = {"log_statements.py", "scheduler_answers.py"}  # they name what others ask for
    asking = [path for path in home.rglob("*.py") if path.name not in answers]
    code = "\n".join(path.read_text() for path in asking)
    quoted = set(re.findall(r'"(\w+)"', code))
    # `trigger_fold.py` and `pool_order.py` make these names.
    made = re.compile(r"trigger_(dump|clear|restore)_\w+|pool_(oldest|newest)")

    names = {name.removesuffix("_few") for name in load_queries(dialect).every()}

    assert {name for name in names - quoted if not made.fullmatch(name)} == set()


def test_a_statement_that_reads_alike_in_both_dialects_stands_once() -> None:
    ours, theirs = (_own_statements(dialect) for dialect in DIALECTS)

    assert {name for name, text in ours.items() if theirs.get(name) == text} == set()


def _own_statements(dialect: Dialect) -> dict[str, str]:
    """The statements and fragments in the files of one dialect alone, without their comments."""
    folder = files("harn.storage") / "sql"
    texts = [each.read_text("utf-8") for each in folder.iterdir() if f".{dialect}." in each.name]
    entries = re.findall(r"^-- (?:name|fragment): (.*)\n((?:.+\n)+)", "\n".join(texts), re.M)
    lines = {
        name: [each for each in body.splitlines() if each[:2] != "--"] for name, body in entries
    }
    return {name: " ".join(" ".join(each).split()) for name, each in lines.items()}


@pytest.mark.parametrize("file", ["jobs.sql", "jobs.sqlite.sql", "jobs.postgres.sql"])
def test_a_keys_turn_and_credit_are_decided_in_fragments_only(file: str) -> None:
    text = (files("harn.storage") / "sql" / file).read_text("utf-8")

    statements = re.sub(r"^-- fragment: .*?(?=^-- name: |\Z)", "", text, flags=re.M | re.S)

    assert (
        re.findall(r"\b(?:turn|round|credit|deferred|deferred_from|idle_at) = CASE", statements)
        == []
    )


@pytest.mark.parametrize(
    ("ready", "in_flight", "turn", "credit", "cap", "expected"),
    [
        pytest.param(0, 1, None, 0, 0, None, id="nothing ready"),
        pytest.param(3, 2, 7, 1, 2, None, id="at its cap"),
        pytest.param(3, 1, 7, 1, 2, 7, id="keeps its turn"),
        pytest.param(3, 1, None, 1, 2, 9, id="credit left: this round"),
        pytest.param(3, 1, None, 0, 2, 10, id="no credit left: the next round"),
        pytest.param(3, 9, None, 0, 0, 10, id="no cap"),
    ],
)
def test_a_key_has_its_turn_by_its_jobs_its_cap_and_its_credit(
    ready: int, in_flight: int, turn: int | None, credit: int, cap: int, expected: int | None
) -> None:
    connection = apsw.Connection(":memory:")
    migrate(connection, "a test")
    columns = "queue_id, key, ready, scheduled, in_flight, turn, round, credit"
    connection.execute(
        f"INSERT INTO shares ({columns}) VALUES (1, 'a', ?, 0, ?, ?, 5, ?)",
        (ready, in_flight, turn, credit),
    )

    connection.execute(
        load_queries("sqlite")["apply_cap"].text,
        {"queue_id": 1, "cap": cap, "round": 9, "deferrals": 0},
    )

    assert connection.execute("SELECT turn FROM shares").fetchall() == [(expected,)]


def test_a_page_of_ready_jobs_is_sought_by_one_bound() -> None:
    # SQLite seeks by the first of two lower bounds, and reads all that the second leaves out.
    text = load_queries("sqlite")["page_of_ready"].text

    assert re.findall(r"\bid > \S+", text) == ["id > :after"]


def test_only_the_functions_of_a_queue_take_their_producers_number() -> None:
    every = load_queries("postgres").every()

    taking = {name for name, query in every.items() if query.takes_number}

    assert taking == {"work_enter", "work_enter_one", "work_look"}
