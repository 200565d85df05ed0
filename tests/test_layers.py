"""The picture of the rooms, as a table: a room imports rooms on lower lines only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import harn

SOURCE = Path(harn.__file__).parent

LINES = [
    {"cli"},
    {"portal"},
    {"orchestrator"},
    {"triggers", "llm"},
    {"pools", "supervisors", "workers", "ratelimit"},
    {"sync", "eventlog"},
    {"tasks", "storage"},
    {
        "batcher",
        "clock",
        "context",
        "duration",
        "errors",
        "escaping",
        "graceful",
        "ids",
        "joining",
        "masking",
        "naming",
        "open_runtimes",
        "runtime",
        "settings",
        "telemetry",
        "topics",
        "unwinding",
        "wakers",
    },
]
LEFT, RIGHT = {"tasks", "sync"}, {"storage", "eventlog"}
LINE_OF = {room: number for number, rooms in enumerate(LINES) for room in rooms}
GROUND = len(LINES) - 1


def may_import(importer: str, imported: str) -> bool:
    """The rule, on the names of two rooms."""
    if (importer in LEFT and imported in RIGHT) or (importer in RIGHT and imported in LEFT):
        return False
    if LINE_OF[importer] == GROUND:
        return LINE_OF[imported] == GROUND
    return LINE_OF[importer] < LINE_OF[imported]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST) -> set[tuple[str, int]]:
    """Every `harn.<room>` that *tree* imports at run time, with the line."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]  # types may look upward: nothing is imported
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "harn" and len(parts) > 1:
                found.add((parts[1], node.lineno))
    return found


def modules() -> list[Path]:
    unlisted = {"__init__", "__main__", "testing"}
    return [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) not in unlisted]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_lies_below_it(path: Path) -> None:
    importer = room_of(path)
    assert importer in LINE_OF, f"{importer} is not in the picture: draw it"

    for imported, line in imported_rooms(ast.parse(path.read_text())):
        if imported != importer:
            assert imported != "testing", f"{path}:{line} imports testing"
            assert may_import(importer, imported), f"{path}:{line}: {importer} → {imported}"


def test_the_rule_forbids_what_the_picture_forbids() -> None:
    assert may_import("pools", "tasks")
    assert may_import("sync", "tasks")
    assert may_import("eventlog", "storage")

    assert not may_import("pools", "triggers")
    assert not may_import("pools", "workers")
    assert not may_import("sync", "storage")
    assert not may_import("storage", "tasks")
    assert not may_import("runtime", "tasks")


def test_a_forbidden_import_is_found_wherever_it_hides() -> None:
    tree = ast.parse("def f():\n    from harn.cli.output import emit")

    assert imported_rooms(tree) == {("cli", 2)}


ONE_DOOR = {
    "time": ({"clock.py", "testing/loop.py"}, {"time", "monotonic", "sleep", "time_ns"}),
    "asyncio": (
        {"clock.py", "testing/clock.py"},
        {"timeout", "wait_for", "Condition", "TaskGroup"},
    ),
    "os": ({"settings.py"}, {"environ", "getenv"}),
}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.name)
def test_dangerous_things_have_one_door(path: Path) -> None:
    here = str(path.relative_to(SOURCE))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            doors, names = ONE_DOOR.get(node.value.id, (set(), set()))
            allowed = node.attr not in names or here in doors
            assert allowed, (
                f"{path}:{node.lineno}: {node.value.id}.{node.attr} has one door: {doors}"
            )
