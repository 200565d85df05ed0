"""A package loads each of its names at the first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOOR = """
from harn.front_door import front_door

front_door(__name__, {"bell": "bell ring", "garden": "tree", ".": "cellar"})
"""


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A package with three modules; one has a function that is called like itself."""
    room = tmp_path / "house_of_tests"
    room.mkdir()
    (room / "__init__.py").write_text(DOOR)
    (room / "bell.py").write_text("def bell(): return 'ding'\ndef ring(): return bell()\n")
    (room / "garden.py").write_text("tree = object()\n")
    (room / "cellar.py").write_text("wine = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("house_of_tests")
    for name in [each for each in sys.modules if each.startswith("house_of_tests")]:
        del sys.modules[name]


def loaded() -> set[str]:
    return {
        each.removeprefix("house_of_tests.")
        for each in sys.modules
        if each.startswith("house_of_tests.")
    }


def test_nothing_is_loaded_before_it_is_used(house: ModuleType) -> None:
    assert loaded() == set()
    assert house.tree is house.tree

    assert loaded() == {"garden"}


def test_a_name_of_a_module_is_that_module(house: ModuleType) -> None:
    assert house.cellar.wine == 1


def test_every_name_is_listed_before_it_is_loaded(house: ModuleType) -> None:
    assert {"bell", "ring", "tree", "cellar"} <= set(dir(house))
    assert loaded() == set()


def test_an_unknown_name_is_an_attribute_error(house: ModuleType) -> None:
    with pytest.raises(AttributeError, match="'house_of_tests' has no attribute 'attic'"):
        house.attic


@pytest.mark.parametrize("first", ["house_of_tests.bell", "house_of_tests"])
def test_a_function_hides_the_module_that_it_is_called_like(house: ModuleType, first: str) -> None:
    importlib.import_module(first)

    assert house.bell() == house.ring() == "ding"
    assert sys.modules["house_of_tests.bell"].bell is house.bell


def test_an_attribute_can_be_replaced(house: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "bell", lambda: "dong")

    assert house.bell() == "dong"
