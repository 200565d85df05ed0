"""Mistakes in a manifest: all of them, each with its place and what is accepted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from harn.errors import HarnError, InvalidOption, ManifestError
from harn.records import Record

T = TypeVar("T")


class Problem(Record, msgspec.Struct, frozen=True):
    """One mistake: its table, its key, its line if that is known, and what is wrong."""

    file: str
    table: str
    key: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        name = f"{self.table}.{self.key}" if self.table and self.key else self.table or self.key
        return f"{place}: {name}: {self.message}" if name else f"{place}: {self.message}"


class ManifestProblems(ManifestError):
    """A manifest that cannot be used; `problems` holds every mistake."""

    def __init__(self, problems: list[Problem]) -> None:
        first = str(problems[0])
        more = f" (and {len(problems) - 1} more: `harn orchestrator check`)" if problems[1:] else ""
        super().__init__(first + more)
        self.problems = problems


class Problems:
    """Collects the mistakes of one manifest while it is read."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.found: list[Problem] = []
        self._lines = text.splitlines()

    def add(self, table: str, key: str, message: str) -> None:
        """Add a mistake."""
        self.found.append(Problem(self.file, table, key, message, self._line(table, key)))

    def attempt(self, table: str, key: str, read: Callable[[], T]) -> T | None:
        """Return the result of *read*; if it raises, add a mistake in *key* and return None."""
        try:
            return read()
        except InvalidOption as error:
            inner = error.option.split(".")
            full = ".".join([key, *inner[1:]]) if inner[0] == key else key or error.option
            self.add(table, full, f"{_shown(error)}: {error.accepted}")
        except HarnError as error:
            self.add(table, key, str(error))
        return None

    def _line(self, table: str, key: str) -> int | None:
        """Return the line of *key* in *table*, found with regular expressions, or None."""
        start = self._table_line(table)
        if start is None:
            return None
        first, _, rest = key.partition(".")
        name = re.escape(first)
        for number in range(start, len(self._lines)):
            line = self._lines[number]
            if number > start and line.lstrip().startswith("["):
                if re.match(rf"\s*\[\[?\s*{re.escape(table.split('[')[0])}\s*\]", line):
                    break  # the next table of this name
                if name and re.match(rf"\s*\[\[?[\w.\" -]*\.{name}\]", line):
                    return self._inner_line(number, rest)
                if not re.match(rf"\s*\[\[?\s*{re.escape(table.split('[')[0])}\.", line):
                    break
            if name and re.match(rf"\s*\"?{name}\"?\s*=", line):
                return number + 1
        return start + 1 if table else None

    def _inner_line(self, start: int, key: str) -> int:
        """Return the line of *key* in the table whose heading is at *start*, else the heading's."""
        name = re.escape(key.split(".")[0])
        for number in range(start + 1, len(self._lines)):
            line = self._lines[number]
            if line.lstrip().startswith("["):
                break
            if name and re.match(rf"\s*\"?{name}\"?\s*=", line):
                return number + 1
        return start + 1

    def _table_line(self, table: str) -> int | None:
        match = re.fullmatch(r"(\w+)\[(\d+)\]", table)
        if not table:
            return 0
        name, wanted = (match[1], int(match[2])) if match else (table, 0)
        pattern = re.compile(rf"\s*\[\[?\s*{re.escape(name)}\s*\]")
        for number, line in enumerate(self._lines):
            if pattern.match(line):
                if not wanted:
                    return number
                wanted -= 1
        return None


def _shown(error: InvalidOption) -> str:
    text = repr(error.value)
    return text if len(text) <= 80 else f"{text[:77]}..."
