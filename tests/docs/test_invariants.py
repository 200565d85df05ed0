"""Every rule that a test names stands on the page of invariants, once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

NAMED = re.compile(r"(?<=_)[A-Z]\d{1,2}(?=_|$)|(?<=^test_)\d{2}(?=_)")
"""A letter with a number anywhere in a test's name, or a number that the name begins with."""
ROW = re.compile(r"^\| ([A-Z]\d{1,2}|\d{2}) \|", re.M)


def rules_named(tests: Path) -> dict[str, str]:
    """The ids in the names of tests, each with one test that has it."""
    found = {}
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("test_"):
                    for part in NAMED.findall(node.name):
                        found[part] = f"{path.name}::{node.name}"
    return found


def test_every_rule_that_a_test_names_is_on_the_page(root: Path) -> None:
    page = set(ROW.findall((root / "docs/design/invariants.md").read_text()))

    named = rules_named(root / "tests")

    assert len(named) > 100
    assert not {rule: test for rule, test in named.items() if rule not in page}


def test_a_rule_stands_on_the_page_once(root: Path) -> None:
    rules = ROW.findall((root / "docs/design/invariants.md").read_text())

    assert sorted(rules) == sorted(set(rules))
