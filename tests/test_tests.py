"""Every test can fail, waits for conditions and not for durations, and tidies up.

A test asserts, expects an error, or calls a helper of the tests that does. It sleeps for real only
between two looks at a condition, or for a reason that `REAL_SLEEPS` gives.
"""

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
SLEEPS = {"asyncio.sleep", "time.sleep", "threading.Event().wait"}
AS_GOOD_AS_FOREVER = 60
"""So many seconds are cancelled, or pass in virtual time: no test lives that long."""
REAL_SLEEPS = {
    "crash/shared_pool_process.py::work": "the work of a task, which others may overlap",
    "crash/shared_pool_process.py::opened": "between two tries, while the server is away",
    "crash/shared_pool_process.py::submit": "between two tries, while the server is away",
    "crash/test_shared_pools.py::pause": "how long a process is paused",
    "crash/test_shared_pools.py::storm": "when the blows come",
    "crash/limiter_worker.py::mixed": "the pace of its work",
    "crash/queue_worker.py::handler": "the work itself",
    "crash/test_limiter_crash.py::run": "when the kills come",
    "ground/test_fake_clock.py::test_autojump_never_jumps_over_a_thread_at_work": "a wrong jump "
    "needs time to show; a right clock passes at any pace",
    "ground/test_virtual_loop.py::work": "the work of the thread",
    "orchestrator/test_serve.py::test_X1_a_second_signal_does_not_wait_and_the_work_is_not_lost": (
        "two signals that meet are one to the kernel"
    ),
    "pools/test_journal.py::test_J6_a_forked_child_neither_holds_the_lock_nor_writes": (
        "the child lives for so long beside its parent"
    ),
    "storage/test_heartbeat.py"
    "::test_a_lease_outlives_a_loop_that_is_blocked_for_longer_than_it_lives": "what blocks",
    "storage/test_postgres.py::test_E3_a_reader_never_skips_a_record_that_commits_late": (
        "a mistake needs time to show; the outcome does not depend on it"
    ),
    "supervisors/lease_holder.py::body": "what blocks",
    "tasks/test_isolation.py::work": "the work itself, which takes a thread",
    "tasks/test_parallel.py::work": "the work itself, which takes a thread",
    "triggers/test_durability.py::block": "what blocks",
    "triggers/test_gates.py::handler": "the work itself, which must not overlap",
    "workers/test_consumer.py::handler": "what blocks",
    "workers/test_idle.py::test_a_claim_of_what_was_given_back_and_came_due_is_kept": (
        "the store's own time must pass the millisecond"
    ),
    "fixtures/stores_of_0_1_0/make_store.py::jobs": "runs under 0.1.0 only, in its own time",
    "fixtures/stores_of_0_1_0/make_store.py::main": "runs under 0.1.0 only, in its own time",
}
"""Where a test sleeps for real, and why that is no wait for something to happen."""


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


def sleepers(path: Path) -> set[str]:
    """The functions of *path* that sleep for real other than between two looks at a condition."""
    found: set[str] = set()

    def look(node: ast.AST, function: str, is_poll: bool) -> None:
        if isinstance(node, Function):
            function, is_poll = node.name, False
        elif isinstance(node, ast.While):
            is_poll = not isinstance(node.test, ast.Constant)
        elif isinstance(node, ast.For | ast.AsyncFor):
            is_poll = any(isinstance(each, ast.Return | ast.Break) for each in ast.walk(node))
        elif _sleeps_for_real(node) and not is_poll:
            found.add(function)
        for child in ast.iter_child_nodes(node):
            look(child, function, is_poll)

    look(tree_of(path), "", False)
    return found


def _sleeps_for_real(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in SLEEPS or not node.args:
        return False
    seconds = node.args[0]
    if not isinstance(seconds, ast.Constant):
        return True
    return 0 < float(str(seconds.value)) < AS_GOOD_AS_FOREVER


def test_no_test_sleeps_where_it_should_wait() -> None:
    found = {
        f"{path.relative_to(TESTS)}::{function}"
        for path in TESTS.rglob("*.py")
        for function in sleepers(path)
    }

    assert found - set(REAL_SLEEPS) == set(), "wait for an event or a condition instead"
    assert set(REAL_SLEEPS) - found == set(), "listed, and no longer sleeping"


@pytest.mark.parametrize(
    ("body", "is_a_signal"),
    [
        ("await asyncio.sleep(0.1)", True),
        ("time.sleep(wait)", True),
        ("while True:\n        time.sleep(1)", True),
        ("for _ in range(9):\n        time.sleep(1)", True),
        ("threading.Event().wait(0.3)", True),
        ("await asyncio.sleep(0)", False),
        ("await asyncio.sleep(3600)", False),
        ("threading.Event().wait()", False),
        ("while not done():\n        time.sleep(0.01)", False),
        ("for _ in range(9):\n        if done():\n            break\n        time.sleep(1)", False),
    ],
)
def test_a_sleep_that_stands_for_a_signal_is_found(
    body: str, is_a_signal: bool, tmp_path: Path
) -> None:
    path = tmp_path / "test_sample.py"
    path.write_text(f"async def test_a():\n    {body}\n")

    assert sleepers(path) == ({"test_a"} if is_a_signal else set())


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
