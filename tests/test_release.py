"""A release says the same everywhere: version, changelog, Pythons, what the sdist holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tools.dist import PYTHONS

import harn

TEXT = {".md", ".py", ".toml", ".yaml", ".json", ".service", ".svg", ""}
TELLS_THE_VERSION = re.compile(r"(?:harn_runtime-|harn:|\bharn==?)(\d+\.\d+\.\d+)")


@pytest.fixture
def project(root: Path) -> Any:
    return tomllib.loads((root / "pyproject.toml").read_text())


def test_the_version_is_written_in_one_place(project: Any, root: Path) -> None:
    assert project["project"]["dynamic"] == ["version"]
    place = root / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{harn.__version__}"' in place.read_text()


@pytest.mark.parametrize("folder", ["docs", "deploy", "examples"])
def test_every_page_and_deploy_file_names_this_version(root: Path, folder: str) -> None:
    files = [path for path in (root / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_text() for path in files if path.suffix in TEXT}

    told = {
        (str(path.relative_to(root)), version)
        for path, text in texts.items()
        for version in TELLS_THE_VERSION.findall(text)
    }

    assert {version for _, version in told} <= {harn.__version__}, told
    assert told or folder == "examples"


def test_the_pythons_that_are_claimed_are_those_that_are_tried(project: Any, root: Path) -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))

    assert tuple(claimed) == PYTHONS
    assert project["project"]["requires-python"] == f">={PYTHONS[0]}"
    page = (root / "docs" / "versions.md").read_text()
    for version in PYTHONS:
        assert re.search(rf"Python .*{re.escape(version)}", page), version


def test_the_sdist_holds_everything_that_the_tests_read(project: Any, root: Path) -> None:
    held = {
        each.strip("/") for each in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    }

    for name in held:
        assert (root / name).exists(), name
    read = re.findall(
        r'root / "(\.ci|\w[\w.]*)"',
        "\n".join(p.read_text() for p in (root / "tests").rglob("*.py")),
    )
    assert set(read) - {"pyproject.toml"} <= held


def test_the_changelog_has_this_version_first_and_every_line_by_its_kind(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text()
    pieces = re.split(r"^## (.+)$", text, flags=re.M)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    versions = [name for name in sections if name != "Unreleased"]

    assert next(iter(sections)) == "Unreleased"
    assert versions[0] == harn.__version__
    assert versions == sorted(versions, key=lambda name: tuple(map(int, name.split("."))))[::-1]
    for name in versions:
        before, *kinds = re.split(r"^### (.+)$", sections[name], flags=re.M)
        assert not re.search(r"^- ", before, re.M), f"{name} has lines of no kind"
        assert kinds[::2] in (["Added", "Changed", "Fixed"], ["Added"]), name
        assert all(re.search(r"^- ", lines, re.M) for lines in kinds[1::2])


def test_no_line_of_a_version_is_in_the_changelog_twice(root: Path) -> None:
    released = (root / "CHANGELOG.md").read_text().partition(f"## {harn.__version__}")[2]
    lines = re.split(r"^(?:- |#+ )", released, flags=re.M)
    told = [" ".join(line.split()) for line in lines if len(line) > 20]

    assert sorted(told) == sorted(set(told))
