"""Every file and module of the project that a text names exists.

The texts are the pages about the design, the README, CONTRIBUTING, and the docstrings and comments
of the code, SQL included. A file may be named by its path from anywhere above it.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CODE = ("src", "tests", "tools", "bench")
FILE = re.compile(r"(?<![\w/.*<{}-])(?:[\w-]+/)*[\w-]+\.(?:py|sql|svg)\b(?!\w)")
MODULE = re.compile(r"(?<![\w./-])harn(?:\.[A-Za-z_]\w*)+")
NOT_OURS = {"file.py", "harn.toml", "harn.enqueue"}
"""A user's handlers, a manifest, and the function that PostgreSQL has."""


def paths(*patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    return sorted(path for path in found if not {"fixtures", "results"} & {*path.parts})


TEXTS = paths(
    *("docs/design/*.md", "README.md", "CONTRIBUTING.md"),
    *(f"{folder}/**/*.{kind}" for folder in CODE for kind in ("py", "sql")),
)


def known_names() -> frozenset[str]:
    """Every file, by each of its paths: `pool.py`, `pools/pool.py` and so on."""
    files = paths("*.*", *(f"{folder}/**/*.*" for folder in (*CODE, "docs", "examples", "deploy")))
    parts = [file.relative_to(ROOT).parts for file in files]
    return frozenset("/".join(each[at:]) for each in parts for at in range(len(each)))


KNOWN = known_names()


def prose(path: Path) -> Iterator[str]:
    """What *path* says in words: all of a page, the docstrings and comments of code."""
    text = path.read_text()
    if path.suffix == ".sql":
        yield from re.findall(r"--(.*)", text)
    elif path.suffix == ".py":
        yield from (
            str(node.value.value)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (each.string for each in tokens if each.type == tokenize.COMMENT)
    else:
        yield text


def missing_files(text: str) -> set[str]:
    return {*FILE.findall(text)} - KNOWN - NOT_OURS


def missing_modules(text: str) -> set[str]:
    return {name for name in MODULE.findall(text) if name not in NOT_OURS and not is_there(name)}


def is_there(name: str) -> bool:
    """Whether *name*, such as `harn.pools.Pool.submit`, is a module or something inside one."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:depth]))
        except ImportError:
            continue
        for part in parts[depth:]:
            if not hasattr(thing, part):
                return False
            thing = getattr(thing, part)
        return True
    return False


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_and_module_that_is_named_exists(path: Path) -> None:
    text = "\n".join(prose(path))

    assert missing_files(text) == set()
    assert missing_modules(text) == set()


def test_a_name_that_nothing_has_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text(
        '"""See `pools/pool.py`, `pools/pol.py` and `harn.pools.Pool`."""\n'
        "x = 'not.py'  # as harn.pols does, and sql/jobs.sql, and sql/jbos.sql\n"
    )

    text = "\n".join(prose(path))

    assert missing_files(text) == {"pools/pol.py", "sql/jbos.sql"}
    assert missing_modules(text) == {"harn.pols"}
