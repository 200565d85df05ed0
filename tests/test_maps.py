"""The maps of the rooms agree: the picture in the docs, the one in `harn`, each room's list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import harn
from test_layers import LINES, SOURCE, UNLISTED

ROOMS = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))


def picture(text: str) -> dict[str, set[str]]:
    """Read the drawing in *text*: the rooms on each labelled line."""
    found: dict[str, set[str]] = {}
    label = ""
    drawing = re.search(r"^ *edges .*?(?=\n\n|\n```|\Z)", text, re.S | re.M)
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


def test_every_room_on_the_disk_is_drawn_and_every_drawn_one_is_there() -> None:
    there = {path.stem for path in SOURCE.glob("*.py")} | {room.name for room in ROOMS}

    assert there - UNLISTED == set().union(*LINES)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_lists_all_its_modules_and_no_other(room: Path) -> None:
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""

    listed = set(re.findall(r"(?<![\w/])(\w+)\.py\b", docstring))

    assert listed == {path.stem for path in room.glob("*.py")} - {"__init__"}
