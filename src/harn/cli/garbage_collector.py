"""How a process that does nothing but run a command looks for garbage: hardly ever.

A start makes many objects and drops few. Python would look through them a hundred times on the
way, and twice before it ends, which takes a fifth of a short command. What a user's module leaves
in a cycle is found as always: it may be a file with a last line to write.
"""

from __future__ import annotations

import gc
import sys

STARTING = 100_000
"""New objects after which Python looks for garbage while modules load; 700 unless told."""
WORKING = 10_000
"""The same once a command's work begins: some run for months."""
IMPORT_MODULES = ("harn.orchestrator.manifest_exports", "harn.cli.worker_command")
"""Modules that import the user's ones."""

_is_alone = False
_has_spared = False  # not the count of what is frozen: Python 3.12 freezes some itself


def begin_command() -> None:
    """Note that this process is there for one command."""
    global _is_alone
    _is_alone = True
    gc.set_threshold(STARTING, *gc.get_threshold()[1:])


def spare_modules() -> None:
    """Look no more through what is loaded so far: nearly all modules, and nothing of a user's.

    For a command that imports the user's modules, if any, after its runtime is made, which will
    hold what they register. Once: later there may be something of theirs.
    """
    global _has_spared
    if _is_alone and not _has_spared:
        _has_spared = True
        gc.freeze()
        begin_work()


def begin_work() -> None:
    """Look for garbage as seldom as while working; for a command that runs until a signal."""
    if _is_alone:
        gc.set_threshold(WORKING, *gc.get_threshold()[1:])


def end_command() -> None:
    """Leave nothing to look through, if all of it is our own."""
    if sys.modules.keys().isdisjoint(IMPORT_MODULES):
        gc.freeze()
