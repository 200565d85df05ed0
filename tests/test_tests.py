"""Every test can fail: it asserts, expects an error, or calls a helper of the tests that does."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import psycopg
import pytest

from harn import event_log_emit
from harn.testing import fresh_runtime
from tests.postgres import own_schema

TESTS = Path(__file__).parent
CHECKS = {"raises", "fail", "warns", "assert_outcomes", "check_returncode", "fnmatch_lines"}
"""What fails a test when it is called, beside `assert` and `raise`."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def helpers_of(path: Path) -> dict[str, list[tuple[Function, Path]]]:
    """The functions of *path* and of the modules of the tests that it imports, by name."""
    found: dict[str, list[tuple[Function, Path]]] = {}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, Function):
            found.setdefault(node.name, []).append((node, path))
        for place in _places(node):
            for known, functions in helpers_of(place).items():
                found.setdefault(known, []).extend(functions)
    return found


def _places(node: ast.AST) -> list[Path]:
    """The files of the tests that *node* imports from, as `tests.<room>.<module>`."""
    if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tests"):
        return []
    module = TESTS.parent / (node.module or "").replace(".", "/")
    places = [module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)]
    return [place for place in places if place.is_file()]


def can_fail(function: Function, path: Path, seen: frozenset[str] = frozenset()) -> bool:
    """Whether *function* of *path* checks something itself, or by what it calls in the tests."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.keyword) and ast.unparse(node) == "check=True":
            return True  # of subprocess.run
        if isinstance(node, ast.Call):
            names.add(ast.unparse(node.func).rpartition(".")[2])
    if names & CHECKS:
        return True
    helpers = helpers_of(path)
    return any(
        can_fail(helper, home, seen | {name})
        for name in names - seen
        for helper, home in helpers.get(name, ())
        if helper is not function
    )


def written_in(path: Path) -> list[Function]:
    return [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, Function) and node.name.startswith("test_")
    ]


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_every_test_can_fail(path: Path) -> None:
    idle = [test.name for test in written_in(path) if not can_fail(test, path)]

    assert not idle, f"these assert nothing: {idle}"


@pytest.mark.parametrize(
    ("text", "bites"),
    [
        ("def test_a():\n    assert 1", True),
        ("def test_a():\n    with pytest.raises(ValueError):\n        f()", True),
        ("def check():\n    assert 1\ndef test_a():\n    asyncio.run(check())", True),
        ("def test_a():\n    f()", False),
        ("def f():\n    return 1\ndef test_a():\n    f()", False),
        ("def test_a():\n    test_a()", False),
    ],
)
def test_a_test_that_asserts_nothing_is_found(text: str, bites: bool, tmp_path: Path) -> None:
    path = tmp_path / "test_sample.py"
    path.write_text(text)

    assert [can_fail(test, path) for test in written_in(path)] == [bites]


async def test_a_tests_schema_is_dropped_at_its_end(postgres_database: str) -> None:
    def schemas() -> set[str]:
        with psycopg.connect(postgres_database) as connection:
            return {row[0] for row in connection.execute("SELECT nspname FROM pg_namespace")}

    with own_schema(postgres_database) as url:
        name = url.rpartition("=")[2]
        async with fresh_runtime(storage=url):
            await event_log_emit("news", "hello", {})
        assert name in schemas()

    assert name not in schemas()
