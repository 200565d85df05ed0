"""The picture of the rooms, as a table: a room imports rooms on lower lines only."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import harn

SOURCE = Path(harn.__file__).parent

LINES = [
    {"cli"},
    {"portal"},
    {"orchestrator"},
    {"triggers", "llm"},
    {"pools", "supervisors", "workers", "ratelimit", "state"},
    {"sync", "eventlog"},
    {"tasks", "storage"},
    {
        "batcher",
        "clock",
        "context",
        "current",
        "durable_calls",
        "durable_types",
        "durable_work",
        "duration",
        "error_text",
        "errors",
        "escaping",
        "event_loop",
        "exact_json",
        "file_sync",
        "front_door",
        "graceful_stop",
        "ids",
        "masking",
        "naming",
        "open_runtimes",
        "option_checks",
        "plurals",
        "private_files",
        "pydantic_types",
        "quiescence",
        "records",
        "retry_policy",
        "run_main",
        "running_context",
        "running_processes",
        "runtime",
        "settings",
        "stopping",
        "teardown",
        "telemetry",
        "topics",
        "unsettled",
        "unsettled_sources",
    },
]
LEFT, RIGHT = {"tasks", "sync"}, {"storage", "eventlog"}
LINE_OF = {room: number for number, rooms in enumerate(LINES) for room in rooms}
GROUND = len(LINES) - 1
UNLISTED = {"__init__", "__main__", "testing"}


def may_import(importer: str, imported: str) -> bool:
    """The rule, on the names of two rooms."""
    if (importer in LEFT and imported in RIGHT) or (importer in RIGHT and imported in LEFT):
        return False
    if LINE_OF[importer] == GROUND:
        return LINE_OF[imported] == GROUND
    return LINE_OF[importer] < LINE_OF[imported]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST, package: str = "harn") -> set[tuple[str, int]]:
    """Every room of harn that *tree*, in *package*, imports at run time, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]  # types may look upward: nothing is imported
    found = set()
    for node in ast.walk(tree):
        for name in _imported_names(node, package):
            if name.startswith("harn.") and (room := _room_named(name)) is not None:
                found.add((room, node.lineno))  # type: ignore[attr-defined]
    return found


def _imported_names(node: ast.AST, package: str) -> list[str]:
    """Return the dotted names that *node* makes Python load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        module = ".".join(filter(None, (base, node.module)))
        return [f"{module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        first = node.args[0] if node.args else None
        return [str(first.value)] if isinstance(first, ast.Constant) else []
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "harn":
        return [f"harn.{node.attr}"]
    return []


def _room_named(name: str) -> str | None:
    """Return the room of `harn.<room>` or of the public `harn.<name>`; None for `__version__`."""
    part = name.split(".")[1]
    if part in LINE_OF or part in UNLISTED:
        return part
    rooms: dict[str, str] = vars(harn)["_ROOMS"]
    return next((room for room, names in rooms.items() if part in names.split()), None)


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if room_of(path) not in UNLISTED]


def package_of(path: Path) -> str:
    return ".".join(("harn", *path.relative_to(SOURCE).parts[:-1]))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_what_lies_below_it(path: Path) -> None:
    importer = room_of(path)
    assert importer in LINE_OF, f"{importer} is not in the picture: draw it"

    for imported, line in imported_rooms(ast.parse(path.read_text()), package_of(path)):
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


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    from harn.cli.output import emit",
        "def f():\n    from harn import cli",
        "def f():\n    from harn import cli as commands",
        "def f():\n    import harn.cli.output as output",
        "def f():\n    from ..cli import output",
        "def f():\n    from .. import cli",
        "def f():\n    importlib.import_module('harn.cli')",
        "import harn\nharn.cli.main()",
    ],
)
def test_a_forbidden_import_is_found_wherever_it_hides(text: str) -> None:
    assert imported_rooms(ast.parse(text), "harn.pools") == {("cli", 2)}


def test_a_public_name_belongs_to_its_room() -> None:
    tree = ast.parse("from harn import __version__, pool_create, spawn")

    assert imported_rooms(tree) == {("pools", 1), ("tasks", 1)}


@pytest.mark.parametrize("room", sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")))
def test_a_room_exports_only_what_exists(room: str) -> None:
    module = importlib.import_module(f"harn.{room}")

    missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]

    assert not missing, f"harn.{room}.__all__ names {missing}"


ONE_DOOR = {
    "time": (
        {"clock.py", "testing/virtual_loop.py"},
        {
            *("time", "monotonic", "perf_counter", "sleep"),
            *("time_ns", "monotonic_ns", "perf_counter_ns"),
        },
    ),
    "asyncio": (
        {"clock.py", "testing/fake_clock.py"},
        {"timeout", "timeout_at", "wait_for", "Condition", "TaskGroup"},
    ),
    "os": ({"settings.py"}, {"environ", "environb", "getenv", "putenv"}),
}


def through_other_doors(tree: ast.AST, here: str) -> list[tuple[str, int]]:
    """What *tree*, of the file *here*, uses that has a door elsewhere, with the line."""
    bound = {
        alias.asname or alias.name.partition(".")[0]: alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root = ast.unparse(node).partition(".")[0]
            module, used = bound.get(root, ""), [node.attr]
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").partition(".")[0]
            used = [alias.name for alias in node.names]
        else:
            continue
        doors, names = ONE_DOOR.get(module, (set(), set()))
        if here not in doors:
            found += [(f"{module}.{name}", node.lineno) for name in used if name in {*names, "*"}]
    return found


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_dangerous_things_have_one_door(path: Path) -> None:
    here = str(path.relative_to(SOURCE))

    assert not through_other_doors(ast.parse(path.read_text()), here)


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.sleep(1)",
        "import time as t\nt.monotonic()",
        "pass\nfrom time import sleep",
        "pass\nfrom time import time as now",
        "pass\nfrom time import *",
        "pass\nfrom os import environ",
        "import os as system\nsystem.environ['HOME']",
        "import os.path\nos.getenv('HOME')",
        "pass\nfrom asyncio import timeout",
        "pass\nfrom asyncio.timeouts import timeout_at",
        "import asyncio\nasyncio.timeouts.timeout(1)",
    ],
)
def test_a_back_door_is_found_however_it_is_spelt(text: str) -> None:
    assert [line for _, line in through_other_doors(ast.parse(text), "pools/pool.py")] == [2]


def test_the_door_itself_may_be_used() -> None:
    assert not through_other_doors(ast.parse("from time import monotonic"), "clock.py")
    assert not through_other_doors(ast.parse("from os import path"), "pools/pool.py")


SQL = re.compile(
    r"(?:\s|--[^\n]*\n)*(?:\(*SELECT\b|INSERT\s+(?:OR\s+\w+\s+)?INTO\b|REPLACE\s+INTO\b|MERGE\s+INTO\b"
    r"|UPDATE\s.+?\sSET\s|DELETE\s+FROM\b|WITH\s+(?:RECURSIVE\s+)?\w+\s+AS\b|VALUES\s*\("
    r"|(?:CREATE|DROP|ALTER|TRUNCATE|COPY|EXPLAIN|REINDEX|LISTEN|NOTIFY)\s+[\w\"{]|LOCK\s+TABLE\b"
    r"|(?i:select\s.+\sfrom\s|insert\s+(?:or\s+\w+\s+)?into\s|update\s+\w+\s+set\s|delete\s+from\s"
    r"|with\s+(?:recursive\s+)?\w+\s+as\s*\())",
    re.S,
)
"""A statement. What opens and ends a transaction, and a PRAGMA, are an engine's own."""


def statements_in(tree: ast.AST) -> list[tuple[str, int]]:
    """The SQL in *tree*, docstrings aside, with the line."""
    said = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.value, node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node not in said and isinstance(node.value, str)
        if SQL.match(node.value) and not node.value.isalpha()
    ]


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_sql_stands_in_its_own_files(path: Path) -> None:
    assert not statements_in(ast.parse(path.read_text()))


def test_a_statement_is_found_outside_its_files() -> None:
    text = "def f(x):\n    'SELECT one.'\n    x(f'INSERT INTO {x} VALUES (1)', 'SELECT 1', 'BEGIN')"
    small = "x('select id from jobs')\nx('select on a channel')"

    assert [line for _, line in statements_in(ast.parse(text))] == [3, 3, 3]  # two are of the f''
    assert [line for _, line in statements_in(ast.parse(small))] == [1]


@pytest.mark.parametrize(
    "planted",
    [
        *("(SELECT 1)", "-- why\nSELECT 1", "insert or ignore into jobs values (1)"),
        *("INSERT OR REPLACE INTO jobs VALUES (1)", 'UPDATE "jobs" AS j SET state = 1'),
        *("WITH RECURSIVE down AS (SELECT 1) SELECT * FROM down", "VALUES (1)"),
        *("TRUNCATE jobs", "COPY jobs FROM STDIN", "LOCK TABLE topics", "DROP INDEX jobs_ready"),
    ],
)
def test_a_planted_statement_is_found_whatever_it_begins_with(planted: str) -> None:
    assert statements_in(ast.parse(f"f({planted!r})")) == [(planted, 1)]


def drivers_in(tree: ast.AST) -> list[int]:
    """The lines of *tree* that take the engine of a store."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Call)
        and re.search(r"store\.driver$|^getattr\(.*store, 'driver'", ast.unparse(node))
    ]


def test_the_engine_of_a_store_is_found_however_it_is_taken() -> None:
    text = "self._store.driver\ngetattr(store, 'driver')\nself.store\ndriver(store)"

    assert drivers_in(ast.parse(text)) == [1, 2]


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if room_of(path) != "storage"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_nothing_outside_storage_reaches_the_engine_of_a_store(path: Path) -> None:
    reached = drivers_in(ast.parse(path.read_text()))

    assert not reached, f"{path}: give Store a method instead, lines {reached}"


# -- the rooms inside storage

STORAGE_LINES = {
    "concerns": {"queue", "triggers", "limits", "leases", "state"},
    "records": {"log"},
    "opened": {"store"},
    "drivers": {"engines"},
    "seams": {
        *(
            "codec",
            "contract",
            "indexes",
            "jsonl",
            "operations",
            "queries",
            "fragments",
            "strict_json",
            "url",
        ),
    },
}
STORAGE = SOURCE / "storage"
STORAGE_LINE_OF = {
    room: number for number, rooms in enumerate(STORAGE_LINES.values()) for room in rooms
}
INNER_ROOMS = sorted(path.parent.name for path in STORAGE.glob("*/__init__.py"))
ENGINES = sorted(path.parent.name for path in STORAGE.glob("engines/*/__init__.py"))


def storage_names(tree: ast.AST, package: str) -> list[tuple[str, int]]:
    """The dotted names below `harn.storage` that *tree* imports at run time, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = [ast.Pass()]
    return [
        (name, node.lineno)  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        for name in _imported_names(node, package)
        if name.startswith("harn.storage.")
    ]


def is_through_a_door(name: str) -> bool:
    """Tell whether *name* is a room inside storage, or stands in the door of one or of storage."""
    module, _, last = name.rpartition(".")
    if module == "harn.storage" and last in INNER_ROOMS:
        return True
    inner = module.removeprefix("harn.storage").lstrip(".")
    return inner in ("", *INNER_ROOMS) and last in importlib.import_module(module).__all__


def may_import_in_storage(here: str, name: str) -> bool:
    """The rule inside storage, on a module's path such as `queue/claim` and a dotted name."""
    room, engine = here.split("/")[0], here.split("/")[1] if here.count("/") > 1 else ""
    parts = name.split(".")[2:]
    if parts[0] == room:
        return not engine or parts[1] not in {*ENGINES} - {engine}
    line, other = STORAGE_LINE_OF[room], STORAGE_LINE_OF.get(parts[0], -1)
    if line == other:
        return parts[0] in STORAGE_LINES["seams"]
    return line < other and (parts[0] not in INNER_ROOMS or is_through_a_door(name))


@pytest.mark.parametrize(
    "path",
    [path for path in modules() if room_of(path) != "storage"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_storage_is_entered_by_its_doors(path: Path) -> None:
    names = storage_names(ast.parse(path.read_text()), package_of(path))

    assert [(name, line) for name, line in names if not is_through_a_door(name)] == []


@pytest.mark.parametrize(
    "path",
    sorted(set(STORAGE.rglob("*.py")) - {STORAGE / "__init__.py"}),
    ids=lambda path: str(path.relative_to(STORAGE)),
)
def test_a_room_inside_storage_imports_only_what_lies_below_it(path: Path) -> None:
    here = str(path.relative_to(STORAGE).with_suffix(""))

    names = storage_names(ast.parse(path.read_text()), package_of(path))

    assert [(name, line) for name, line in names if not may_import_in_storage(here, name)] == []


@pytest.mark.parametrize(
    ("here", "name", "allowed"),
    [
        ("queue/claim", "harn.storage.log.append", True),
        ("queue/claim", "harn.storage.log.events.append", False),
        ("queue/claim", "harn.storage.triggers.take_in", False),
        ("log/events", "harn.storage.queue.work_on", False),
        ("log/rebuild", "harn.storage.engines.Session", True),
        ("log/rebuild", "harn.storage.engines.sqlite.SqliteDriver", False),
        ("engines/file/file_log", "harn.storage.engines.sqlite_session.Session", True),
        ("engines/file/file_log", "harn.storage.engines.sqlite.SqliteDriver", False),
        ("engines/file/file_log", "harn.storage.log.append", False),
        ("codec", "harn.storage.contract.Draft", True),
        ("codec", "harn.storage.store.Store", False),
        ("store", "harn.storage.Event", False),
    ],
)
def test_the_rule_inside_storage(here: str, name: str, allowed: bool) -> None:
    assert may_import_in_storage(here, name) is allowed


@pytest.mark.parametrize("room", ["", *INNER_ROOMS])
def test_a_door_of_storage_has_at_most_forty_names_and_each_exists(room: str) -> None:
    module = importlib.import_module(f"harn.storage.{room}".rstrip("."))

    assert 0 < len(module.__all__) <= 40
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


# -- the maps: the picture in the docs, the one in `harn`, and each room's own list

ROOMS = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
ALL_ROOMS = sorted(path.parent for path in SOURCE.glob("*/**/__init__.py"))


def picture(text: str, first: str = "edges") -> dict[str, set[str]]:
    """Read the drawing in *text* that begins with *first*: the rooms on each labelled line."""
    found: dict[str, set[str]] = {}
    label = ""
    drawing = re.search(rf"^ *{first} .*?(?=\n\n|\n```|\Z)", text, re.S | re.M)
    assert drawing, "there is no picture"
    for line in drawing[0].splitlines():
        if "in this process" in line:
            continue  # says what the columns are
        label = re.match(r" *(\w+)   ", line)[1] if re.match(r" *\w+   +\S", line) else label  # type: ignore[index]
        rooms = re.findall(r"[a-z_]+", line)
        found.setdefault(label, set()).update(set(rooms) - {label})
    return found


def drawn() -> dict[str, set[str]]:
    """What the picture must show: the lines of the layer test, the two edges as one."""
    edges, http, *others = LINES
    names = ("service", "routing", "features")
    lines = {"edges": edges | http, **dict(zip(names, others[:3], strict=True))}
    return lines | {"primitives": others[3] | others[4], "ground": others[5]}


def test_the_picture_in_the_docs_shows_the_rooms_on_their_lines(root: Path) -> None:
    assert picture((root / "docs/design/architecture.md").read_text()) == drawn()


def test_the_picture_in_the_package_shows_the_rooms_on_their_lines() -> None:
    assert picture(harn.__doc__ or "") == drawn()


def test_the_picture_of_storage_in_the_docs_shows_its_rooms_on_their_lines(root: Path) -> None:
    text = (root / "docs/design/architecture.md").read_text()

    assert picture(text, "concerns") == STORAGE_LINES
    assert set(STORAGE_LINE_OF) == {
        *(path.stem for path in STORAGE.glob("*.py") if path.stem != "__init__"),
        *INNER_ROOMS,
    }


def test_every_room_on_the_disk_is_drawn_and_every_drawn_one_is_there() -> None:
    there = {path.stem for path in SOURCE.glob("*.py")} | {room.name for room in ROOMS}

    assert there - UNLISTED == set().union(*LINES)


@pytest.mark.parametrize(
    "room", [SOURCE, *ALL_ROOMS], ids=lambda room: str(room.relative_to(SOURCE.parent))
)
def test_a_room_lists_all_its_modules_and_rooms_and_no_other(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""

    listed = set(re.findall(r"(?<![\w/])(\w+)\.py\b", docstring))
    rooms = set(re.findall(r"^ *(\w+)/ ", docstring, re.M))

    assert listed == {path.stem for path in room.glob("*.py")} - {"__init__"}
    assert rooms == {path.parent.name for path in room.glob("*/__init__.py")}


# -- front doors: what Python loads at the first use, and what type checkers read

DOORS = [room for room in ALL_ROOMS if "front_door(" in (room / "__init__.py").read_text()]


def for_type_checkers(door: ast.If, package: str) -> dict[str, list[str]]:
    """The names below `TYPE_CHECKING`, by the module that they come from."""
    found: dict[str, list[str]] = {}
    for node in door.body:
        assert isinstance(node, ast.ImportFrom)
        module = (node.module or "").removeprefix(package).lstrip(".") or "."
        found[module] = [alias.name for alias in node.names]
    return found


def for_python(door: ast.If) -> dict[str, list[str]]:
    """The names in the table of a door, by the module that they come from."""
    [call] = [node for node in ast.walk(door) if isinstance(node, ast.Call)]
    table: dict[str, str] = ast.literal_eval(call.args[1])
    return {module: names.split() for module, names in table.items()}


@pytest.mark.parametrize("room", DOORS, ids=lambda room: str(room.relative_to(SOURCE)))
def test_a_front_door_tells_python_and_type_checkers_the_same(room: Path) -> None:
    package = ".".join(("harn", *room.relative_to(SOURCE).parts))
    tree = ast.parse((room / "__init__.py").read_text())
    [door] = [node for node in tree.body if isinstance(node, ast.If)]

    typed, table = for_type_checkers(door, package), for_python(door)

    assert table == typed
    exported = sorted(name for names in table.values() for name in names)
    assert exported == sorted(importlib.import_module(package).__all__)


@pytest.mark.parametrize("room", DOORS, ids=lambda room: str(room.relative_to(SOURCE)))
def test_a_name_of_a_door_is_no_other_module_of_its_room(room: Path) -> None:
    """A door can hide the module that a function is in, but no other one of the same name."""
    tree = ast.parse((room / "__init__.py").read_text())
    [door] = [node for node in tree.body if isinstance(node, ast.If)]

    modules = {path.stem for path in room.glob("*.py")}
    table = for_python(door)

    assert table
    for module, names in table.items():
        assert {*names} & modules <= ({*names} if module == "." else {module})
