"""A release says the same everywhere: the version, the Pythons, what the sdist holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tools.dist import PYTHONS

import harn

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
    texts = {path: path.read_text() for path in files if path.suffix not in {".png", ".pyc"}}

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
