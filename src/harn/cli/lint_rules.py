"""The rules of `harn lint`: every one is asked about a module, unless a line silences it."""

from __future__ import annotations

import ast

from harn.cli.lint_findings import Finding, HarnNames
from harn.cli.lint_late_binding import late_bindings
from harn.cli.lint_owned import owned_escapes

RULES = (owned_escapes, late_bindings)


def check_source(source: str | bytes, path: str = "<source>") -> list[Finding]:
    """Return the findings in *source*; raise `SyntaxError` if it is not Python.

    >>> for finding in check_source('''
    ... from harn import Owned, channel
    ... def open_log():
    ...     ch: Owned = channel("log")
    ...     return ch
    ... '''):
    ...     print(finding.line, finding.reason)
    5 'ch' is owned by open_log(), which returns it without '-> Owned[...]'
    """
    tree = ast.parse(source, path)
    text = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
    lines, names = text.splitlines(), HarnNames(tree)
    found = [finding for rule in RULES for finding in rule(tree, names, path)]
    return sorted((each for each in found if not _silenced(lines, each)), key=_place)


def _silenced(lines: list[str], finding: Finding) -> bool:
    return finding.line <= len(lines) and f"noqa: {finding.code}" in lines[finding.line - 1]


def _place(finding: Finding) -> tuple[int, int]:
    return finding.line, finding.column
