"""Tables and sentences that fit the terminal's width; no word is ever broken.

In a pipe nothing is folded: a row is a line. On a terminal a table that is too wide has its long
texts wrapped at spaces. If that is not enough, each row becomes a block: its name, then its values
with their headings.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import TextIO

from harn.cli.colours import colour, mark_of, plain
from harn.duration import roughly
from harn.escaping import one_line

GAP = "  "
LEAST_TEXT = 20
"""The least width of a column whose texts are wrapped."""
_COLUMN = re.compile(r"(?<=\S) {2,}(?=\S)")
"""The gap before a column of a line."""


def width_of(stream: TextIO | None = None) -> int | None:
    """Return the columns of the terminal that *stream* (stdout unless given) is; None in a pipe."""
    stream = stream or sys.stdout
    if not stream.isatty():
        return None
    from shutil import get_terminal_size  # its formats of archives take a while to import

    return get_terminal_size().columns


def cells(text: str) -> int:
    """Return how many columns *text* takes on a terminal.

    >>> cells("abc"), cells("東京")
    (3, 4)
    """
    text = plain(text)
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = None
) -> str:
    """Return *rows* under *headings*, within *width* (the terminal's unless given).

    Numbers are right-aligned. A terminal is spared a column without any value.
    """
    width = width_of() if width is None else width
    columns = [_Column(each, [row[i] for row in rows]) for i, each in enumerate(headings)]
    if width is not None:
        columns = columns[:1] + [each for each in columns[1:] if any(map(_has, each.values))]
        if (widths := _fitting(columns, width)) is None:
            return "\n".join(_block(columns, row, width) for row in range(len(rows)))
        for column, fitting in zip(columns, widths, strict=True):
            column.width = fitting
    return "\n".join(_row(columns, row) for row in range(-1, len(rows)))


def shown_duration(ms: int | None) -> str:
    """Return *ms* with its unit, for a table; `-` if there is no value."""
    return "-" if ms is None else roughly(ms)


def fold(text: str, width: int | None) -> str:
    """Return *text* with lines longer than *width* broken at spaces; continued ones are indented.

    >>> print(fold("one two three four", 10))
    one two
      three
      four
    """
    if width is None:
        return text
    return "\n".join(
        line if cells(line) <= width else _folded(line, width) for line in text.split("\n")
    )


def cut(text: str, width: int) -> str:
    """Return *text* within *width* columns, its end replaced by an ellipsis if it is longer."""
    if cells(text) <= width:
        return text
    kept = plain(text)
    while cells(kept) >= width:
        kept = kept[:-1]
    return f"{kept}…"


class _Column:
    """A heading and its values, as they are shown."""

    def __init__(self, heading: str, values: Sequence[object]) -> None:
        self.heading = heading
        self.values = values
        self.texts = [_shown(value) for value in values]
        self.is_numeric = bool(values) and all(
            isinstance(value, int | float | None) for value in values
        )
        self.natural = max(map(cells, (heading, *self.texts)))
        self.width = self.natural

    @property
    def least(self) -> int:
        """The width of the longest word, and of a readable line if texts are to be wrapped."""
        words = [word for text in (self.heading, *self.texts) for word in text.split()]
        longest = max(map(cells, words), default=0)
        has_texts = any(" " in text for text in self.texts)
        return max(longest, min(self.natural, LEAST_TEXT)) if has_texts else longest

    def lines(self, row: int) -> list[str]:
        """Return the cell of *row* (-1: the heading) as lines of this column's width."""
        text = self.heading if row < 0 else self.texts[row]
        mark = "" if row < 0 else mark_of(self.heading, self.values[row])
        shown = []
        for line in _wrapped(text.split(" "), self.width):
            padding, line = " " * (self.width - cells(line)), colour(mark, line)
            shown.append(padding + line if self.is_numeric else line + padding)
        return shown

    def pair(self, row: int) -> str | None:
        """Return heading and value of *row*; None without a value."""
        if not _has(self.values[row]):
            return None
        return f"{self.heading} {colour(mark_of(self.heading, self.values[row]), self.texts[row])}"


def _has(value: object) -> bool:
    return value not in (None, "", "-")


def _shown(value: object) -> str:
    return "-" if value is None else one_line(str(value))


def _fitting(columns: Sequence[_Column], width: int) -> list[int] | None:
    """Return each column's width, or None if they do not fit side by side."""
    spare = width - len(GAP) * (len(columns) - 1) - sum(column.least for column in columns)
    if spare < 0:
        return None
    widths = [column.least for column in columns]
    # Those that lack least come first, so that only the longest texts are wrapped.
    for i in sorted(range(len(columns)), key=lambda i: columns[i].natural - columns[i].least):
        more = min(spare, columns[i].natural - columns[i].least)
        widths[i] += more
        spare -= more
    return widths


def _row(columns: Sequence[_Column], row: int) -> str:
    parts = [column.lines(row) for column in columns]
    return "\n".join(
        GAP.join(
            lines[i] if i < len(lines) else " " * column.width
            for column, lines in zip(columns, parts, strict=True)
        ).rstrip()
        for i in range(max(map(len, parts)))
    )


def _block(columns: Sequence[_Column], row: int, width: int) -> str:
    """Return one row as its name and, below, its values with their headings."""
    pairs = [pair for column in columns[1:] if (pair := column.pair(row)) is not None]
    lines = [f"{GAP}{line}" for line in _wrapped(pairs, width - len(GAP), GAP)]
    return fold("\n".join([columns[0].texts[row], *lines]), width)


def _folded(line: str, width: int) -> str:
    """Return *line* on several, continued below its last column, or else indented."""
    start = max((each.end() for each in _COLUMN.finditer(line, 0, width // 2)), default=0)
    if not start:
        start = len(line) - len(line.lstrip(" "))
        indent = " " * start + GAP
    else:
        indent = " " * cells(line[:start])
    first, *more = _wrapped(line[start:].split(" "), width - len(indent))
    return "\n".join([f"{line[:start]}{first}", *(f"{indent}{each}" for each in more)])


def _wrapped(words: Sequence[str], width: int, between: str = " ") -> list[str]:
    """Return *words* on lines of *width* columns; a longer word has a line of its own."""
    lines = [words[0]] if words else [""]
    for word in words[1:]:
        longer = f"{lines[-1]}{between}{word}"
        if cells(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
