"""A package whose names are loaded when they are first used.

A room's `__init__.py` is its front door. If it imported the whole room, a command that needs one
function of a room would load all of it, and all that it stands on. So a door names its modules in
a table, and repeats the imports below `TYPE_CHECKING`, for type checkers and editors.
`tests/test_layers.py` holds both lists and `__all__` to each other.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would be half of what `import harn` loads
    from collections.abc import Mapping
    from typing import Any

MODULES = "."
"""The key of a door's table whose names are modules themselves."""


def front_door(package: str, table: Mapping[str, str]) -> None:
    """Let *package* load each name of *table* at its first use.

    *table* has the names that each module of the package provides, separated by spaces.
    """
    home = {name: module for module, names in table.items() for name in names.split()}
    door = sys.modules[package]

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if home[name] == MODULES:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(f"{package}.{home[name]}"), name)
        door.__dict__[name] = value
        return value

    door.__dict__["__getattr__"] = load
    door.__dict__["__dir__"] = lambda: sorted({*door.__dict__, *home})
    if hidden := home.keys() & table.keys():
        door.__class__ = type("Door", (_Door,), {"hidden": hidden})


class _Door(ModuleType):
    """A package with functions that are called like the modules that they are in.

    When Python has loaded a module, it makes it an attribute of its package. Here it must not
    take the place of the function: `from harn.sync import channel` is the function.
    """

    hidden: frozenset[str]

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, unless Python sets a module that a function hides."""
        if not (name in self.hidden and isinstance(value, ModuleType)):
            super().__setattr__(name, value)
