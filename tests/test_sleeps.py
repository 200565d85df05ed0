"""No test waits for a duration where it should wait for a condition or a signal.

A test sleeps for real only between two looks at a condition, or for a reason that `REAL_SLEEPS`
gives. What counts is what a name means: a sleep that is imported or passed under another name, an
event that nothing sets, a future that never ends.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
SLEEPS = {"asyncio.sleep", "time.sleep", "threading.Event().wait", "select.select"}
UNENDING = re.compile(r"asyncio\.(Event\(\)\.wait|Future)\(\)|[\w.()]+\.create_future\(\)")
"""What `asyncio.wait_for` never sees the end of."""
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
    "ground/test_stopping.py::test_signals_at_any_moment_end_it_in_order": "when the signals come",
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
    "tasks/test_sweeps.py::thread": "the work itself, which takes a thread",
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


def sleepers(path: Path) -> set[str]:
    """The functions of *path* that sleep for real other than between two looks at a condition."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    meanings = meanings_in(tree)

    def look(node: ast.AST, function: str, is_poll: bool) -> None:
        if isinstance(node, Function):
            function, is_poll = node.name, False
        elif isinstance(node, ast.While):
            is_poll = not isinstance(node.test, ast.Constant)
        elif isinstance(node, ast.For | ast.AsyncFor):
            is_poll = any(isinstance(each, ast.Return | ast.Break) for each in ast.walk(node))
        elif not is_poll and _sleeps_for_real(node, meanings):
            found.add(function)
        for child in ast.iter_child_nodes(node):
            look(child, function, is_poll)

    look(tree, "", False)
    return found


def meanings_in(tree: ast.Module) -> dict[str, str]:
    """What the names of *tree* stand for: what was imported, events that nothing sets, sleeps."""
    meanings: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            meanings |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom):
            module = f"{node.module}."
            meanings |= {each.asname or each.name: module + each.name for each in node.names}
    meanings |= {
        target.id: meant
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        if (meant := _meaning(node.value, meanings)) in SLEEPS
        or (meant == "threading.Event()" and _is_only_waited_for(target.id, tree))
    }
    return meanings


def _meaning(expression: ast.expr, meanings: dict[str, str]) -> str:
    """Return *expression* as text in which its first name is what that name stands for."""
    text = ast.unparse(expression)
    first = re.match(r"\w*", text)[0]  # type: ignore[index]
    return meanings.get(first, first) + text[len(first) :]


def _is_only_waited_for(name: str, tree: ast.Module) -> bool:
    """Whether every use of the event *name* is a wait, so that nothing sets it."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    waits = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "wait"
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    ]
    return len(uses) == len(waits) + 1  # the assignment


def _sleeps_for_real(node: ast.AST, meanings: dict[str, str]) -> bool:
    if isinstance(node, ast.With) and len(node.items) == 1:
        return "TimeoutExpired" in ast.unparse(node.items[0].context_expr)
    if not isinstance(node, ast.Call):
        return False
    called = _meaning(node.func, meanings)
    if called == "asyncio.wait_for" and UNENDING.fullmatch(_meaning(node.args[0], meanings)):
        return True
    if called == "select.select":
        return not any(isinstance(each, ast.List) and each.elts for each in node.args)
    return any(
        _meaning(function, meanings) in SLEEPS - {"select.select"} and _is_short(seconds)
        for function, seconds in pairwise([node.func, *node.args])
    )


def _is_short(seconds: ast.expr) -> bool:
    """Whether *seconds* is a time that passes while a test runs; a computed one is."""
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
        ("from time import sleep as nap\n    nap(0.1)", True),
        ("import asyncio as aio\n    await aio.sleep(0.1)", True),
        ("nap = time.sleep\n    nap(0.1)", True),
        ("await asyncio.to_thread(time.sleep, 0.1)", True),
        ("never = threading.Event()\n    never.wait(0.1)", True),
        ("done = threading.Event()\n    start(done)\n    done.wait(9)", False),
        ("done = threading.Event()\n    done.set()\n    done.wait(9)", False),
        ("await asyncio.wait_for(asyncio.Event().wait(), 0.1)", True),
        ("await asyncio.wait_for(loop().create_future(), 0.1)", True),
        ("await asyncio.wait_for(done.wait(), 30)", False),
        ("select.select([], [], [], 0.1)", True),
        ("select.select([pipe], [], [], 9)", False),
        ("with pytest.raises(TimeoutExpired):\n        process.wait(0.1)", True),
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
