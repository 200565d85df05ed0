"""One hand-made fault: a small change to a file, and the tests that must notice it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


class TableError(Exception):
    """The table does not fit the tree: a text is not there once, or a test does not exist."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """Put *new* for *old*, which stands once in *file*; *tests* fail then, because of *why*.

    *file* is below `src/harn/`, *tests* are pytest's node ids below `tests/`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def path(self, root: Path) -> Path:
        """Return the file to change in the tree at *root*."""
        return root / "src" / "harn" / self.file

    def applied(self, root: Path) -> str:
        """Return the text of the file with the change made; `TableError` if it does not fit."""
        path = self.path(root)
        if not path.is_file():
            raise TableError(f"{self.name}: there is no {path.relative_to(root)}")
        text = path.read_text()
        if (found := text.count(self.old)) != 1:
            raise TableError(
                f"{self.name}: the old text occurs {found} times in {self.file}, not once; "
                "bring the table up to date with the code"
            )
        changed = text.replace(self.old, self.new)
        if path.suffix == ".py":
            _check_syntax(self, changed)
        return changed

    def check_tests(self, root: Path) -> None:
        """Raise `TableError` unless every named test is a function of its file."""
        if not self.tests:
            raise TableError(f"{self.name}: no test is named")
        for node in self.tests:
            name, _, function = node.partition("::")
            path = root / "tests" / name
            if not path.is_file():
                raise TableError(f"{self.name}: there is no tests/{name}")
            if function and f"def {function.partition('[')[0]}(" not in path.read_text():
                raise TableError(f"{self.name}: tests/{name} has no {function}")


def _check_syntax(mutant: Mutant, text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise TableError(f"{mutant.name}: the changed file is no Python: {error}") from error
