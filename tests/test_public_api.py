"""`harn.__all__` is sorted, is exactly what is public, and grows towards the agreed surface."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import get_args

import pytest

import harn
from harn.llm.agent import OPTIONS as AGENT_OPTIONS
from harn.llm.call import LlmOptions
from harn.runtime import RuntimeOptions
from harn.triggers import PROVIDERS, FlowOptions, MatchOptions
from harn.triggers.binding import OPTIONS as TRIGGER_OPTIONS
from harn.triggers.event import SETTABLE
from harn.triggers.matching import MATCH_KEYS
from harn.triggers.trigger_options import EventFields, Provider
from harn.workers.function_jobs import JobOptions

STUB = Path(harn.__file__).with_suffix(".pyi")


def stubbed_names() -> list[str]:
    tree = ast.parse(STUB.read_text())
    return [
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]


def test_all_is_sorted_and_without_repeats() -> None:
    assert list(harn.__all__) == sorted(set(harn.__all__))


def test_type_checkers_see_the_same_names() -> None:
    assert sorted(stubbed_names()) == list(harn.__all__)


@pytest.mark.parametrize("name", harn.__all__)
def test_every_public_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    thing = getattr(harn, name)

    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing), f"{name} has no docstring"
        assert thing.__module__.startswith("harn."), f"{name} is not ours"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'pool_crate'"):
        harn.pool_crate  # type: ignore[attr-defined]


def test_importing_harn_loads_no_room() -> None:
    import subprocess
    import sys

    code = "import sys, harn; print(sorted(m for m in sys.modules if m.startswith('harn.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "['harn.front_door']"


OPTION_TYPES: list[tuple[type, set[str]]] = [
    (RuntimeOptions, set(inspect.signature(harn.Runtime).parameters)),
    (LlmOptions, set(AGENT_OPTIONS)),
    (JobOptions, set(inspect.signature(harn.WorkerQueue.enqueue).parameters) - {"self", "payload"}),
    (MatchOptions, set(MATCH_KEYS)),
    (FlowOptions, set(TRIGGER_OPTIONS)),
    (EventFields, set(SETTABLE) - {"id"}),
]


@pytest.mark.parametrize(
    ("options", "known"), OPTION_TYPES, ids=[options.__name__ for options, _ in OPTION_TYPES]
)
def test_the_type_of_options_has_exactly_those_that_are_accepted(
    options: type, known: set[str]
) -> None:
    assert set(options.__annotations__) == known


def test_the_type_of_the_provider_of_a_trigger_has_exactly_those_that_are_accepted() -> None:
    assert set(get_args(Provider)) == {name for names in PROVIDERS.values() for name in names}
