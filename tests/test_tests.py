"""Every test can fail in every run, and tidies up; `test_sleeps.py` says how tests wait.

A test asserts, expects an error, or calls a helper of the tests that does. It reaches one of these
checks whatever happens, and an error that it expects is told from any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Set
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
PROMISES = re.compile(r"_*(assert|check|ensure|expect|must|verify)_")
"""How the name of a helper begins that says that it checks something."""
BROAD = {"Exception", "BaseException", "HarnError", "harn.HarnError"}
"""Errors that a mistake in the test itself, or any other refusal, raises too."""
KEEPING = {"enumerate", "list", "product", "reversed", "set", "sorted", "tuple", "zip"}
"""What returns items wherever it is given some."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor


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


@cache
def can_fail(function: Function, path: Path, seen: frozenset[str] = frozenset()) -> bool:
    """Whether *function* of *path* checks something itself, or by what it calls in the tests."""
    return any(is_check(node, function, path, seen) for node in ast.walk(function))


def is_check(
    node: ast.AST, function: Function, path: Path, seen: frozenset[str] = frozenset()
) -> bool:
    """Whether *node*, in *function* of *path*, is or calls something that can fail a test."""
    if isinstance(node, ast.Assert):
        return not is_always_true(node.test)
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.keyword):
        return ast.unparse(node) == "check=True"  # of subprocess.run
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return name in CHECKS or any(
        name not in seen and helper is not function and can_fail(helper, home, seen | {name})
        for helper, home in helpers_of(path).get(name, ())
    )


def is_always_true(condition: ast.expr) -> bool:
    """Whether *condition* is written so that no value makes it false, such as `(a, "says")`."""
    if isinstance(condition, ast.Constant):
        return bool(condition.value)
    if isinstance(condition, ast.Tuple | ast.List | ast.Set):
        return bool(condition.elts)
    if isinstance(condition, ast.JoinedStr):
        return any(isinstance(each, ast.Constant) for each in condition.values)
    return isinstance(condition, ast.GeneratorExp | ast.Lambda)


def checks_in_every_run(function: Function, path: Path) -> bool:
    """Whether *function* of *path* has a check that no run goes around.

    A check in an `except` is reached only after an error, one behind an `if` only if the other
    branch leads to a check as well, and one in a loop only if there is something to loop over. Of
    a property it is enough that some of its cases do.
    """
    if any(ast.unparse(each).startswith("given(") for each in function.decorator_list):
        return can_fail(function, path)
    named = {
        ast.unparse(target): node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    given = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}

    def reached(node: ast.AST) -> bool:
        if isinstance(node, ast.Try):
            return any(map(reached, [*node.body, *node.orelse, *node.finalbody]))
        if isinstance(node, ast.If):
            return any(map(reached, node.body)) and any(map(reached, node.orelse))
        if isinstance(node, Loop) and not has_items(node.iter, named, given):
            return reached(node.iter)
        return is_check(node, function, path) or any(map(reached, ast.iter_child_nodes(node)))

    return any(map(reached, function.body))


def has_items(items: ast.expr, named: Mapping[str, ast.expr], given: Set[str]) -> bool:
    """Whether a loop over *items* certainly begins.

    What is written out has items, and so has a constant or a number of rounds; what the test is
    *given* by its parameters is trusted. What is computed may be empty.
    """
    match items:
        case ast.Constant(value=str(text)):
            return bool(text)
        case ast.ListComp(generators=[ast.comprehension(iter=each, ifs=[])]):
            return has_items(each, named, given)
        case ast.Call(func=ast.Name(id=name)) if name in given:
            return True
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return bool(parts)
        case ast.Name(id=name) if name in named:
            return has_items(named[name], {**named, name: ast.List(elts=[])}, given)
        case ast.Name(id=name):
            return name.isupper() or name in given
        case ast.Attribute(attr=name):
            return name.isupper() or name == "__all__"
        case ast.Call(func=ast.Name(id="range")):
            return True
        case ast.Call(func=ast.Attribute(value=mapping, attr="items" | "values")):
            return has_items(mapping, named, given)
        case ast.Call(func=function, args=parts) if ast.unparse(function) in KEEPING:
            return all(has_items(each, named, given) for each in parts)
    return False


def written_in(path: Path) -> list[Function]:
    return [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, Function) and node.name.startswith("test_")
    ]


def written() -> list[Path]:
    return sorted(TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("path", written(), ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_can_fail(path: Path) -> None:
    idle = [test.name for test in written_in(path) if not can_fail(test, path)]

    assert not idle, f"these assert nothing: {idle}"


@pytest.mark.parametrize("path", written(), ids=lambda path: str(path.relative_to(TESTS)))
def test_every_test_checks_in_every_run(path: Path) -> None:
    lucky = [test.name for test in written_in(path) if not checks_in_every_run(test, path)]

    assert not lucky, f"these may reach no check: {lucky}"


@pytest.mark.parametrize(
    ("text", "bites", "always"),
    [
        ("def test_a():\n    assert f()", True, True),
        ("def test_a():\n    with pytest.raises(ValueError):\n        f()", True, True),
        ("def check():\n    assert f()\ndef test_a():\n    asyncio.run(check())", True, True),
        ("def test_a():\n    f()", False, False),
        ("def f():\n    return 1\ndef test_a():\n    f()", False, False),
        ("def test_a():\n    test_a()", False, False),
        ("def test_a():\n    assert 1", False, False),
        ("def test_a():\n    assert (f(), 'says')", False, False),
        ("def test_a():\n    assert (n for n in f())", False, False),
        ("def test_a():\n    for n in 1, 2:\n        assert f(n)", True, True),
        ("def test_a():\n    for n in f():\n        assert n", True, False),
        ("def test_a():\n    xs = f()\n    for x in xs:\n        assert x", True, False),
        ("def test_a(xs):\n    for x in sorted(xs):\n        assert x", True, True),
        ("def test_a():\n    for n in check(f()):\n        assert n\n    assert f()", True, True),
        ("def test_a():\n    if f():\n        assert g()", True, False),
        ("def test_a():\n    if f():\n        assert g()\n    else:\n        h(x)", True, False),
        ("def test_a():\n    try:\n        f()\n    except X:\n        assert g()", True, False),
        ("def test_a():\n    try:\n        f()\n    finally:\n        assert g()", True, True),
    ],
)
def test_a_test_that_checks_nothing_is_found(
    text: str, bites: bool, always: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_sample.py"
    path.write_text(text)

    [test] = written_in(path)

    assert can_fail(test, path) is bites
    assert checks_in_every_run(test, path) is always


def false_promises(path: Path) -> list[str]:
    """The helpers of *path* whose names say that they check, and that cannot fail."""
    return [
        node.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, Function) and PROMISES.match(node.name) and not can_fail(node, path)
    ]


def caught_broadly(path: Path) -> list[str]:
    """Where *path* expects an error that anything could raise, and does not look at it."""
    return [
        f"line {item.context_expr.lineno}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
        if isinstance(call := item.context_expr, ast.Call)
        and ast.unparse(call.func) == "pytest.raises"
        and ast.unparse(call.args[0]) in BROAD
        and not call.keywords
        and item.optional_vars is None
    ]


def test_a_helper_that_says_it_checks_can_fail() -> None:
    found = {path: false_promises(path) for path in TESTS.rglob("*.py")}

    assert not {path: names for path, names in found.items() if names}


def test_an_expected_error_is_told_from_any_other() -> None:
    found = {path: caught_broadly(path) for path in TESTS.rglob("*.py")}

    assert not {path: lines for path, lines in found.items() if lines}, "name its class or `match`"


def test_an_empty_promise_and_a_broad_catch_are_found(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        "def check_it(x):\n    return x\n"
        "def assert_it(x):\n    assert x\n"
        "def f():\n    with pytest.raises(Exception):\n        g()\n"
        "    with pytest.raises(HarnError, match='full'), pytest.raises(Exception) as caught:\n"
        "        g()\n    with pytest.raises(PoolFull):\n        g()\n"
    )

    assert false_promises(path) == ["check_it"]
    assert caught_broadly(path) == ["line 6"]


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
