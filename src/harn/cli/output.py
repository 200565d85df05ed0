"""What commands print: one JSON document, or text; terminal escapes in it are made harmless."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import click

from harn.duration import to_seconds
from harn.errors import InvalidOption
from harn.escaping import on_lines, one_line, to_json


def say(text: str, *, err: bool = False) -> None:
    """Print *text* with its control characters escaped, so that a terminal obeys none.

    A name or an error that must stay on one line goes through `one_line` first.
    """
    click.echo(on_lines(text), err=err)


def emit(as_json: bool, document: Any, render: Callable[[], str], note: str | None = None) -> None:
    """Print *document* as one JSON document, or else the text that *render* makes.

    A *note* is an extra line below the text, and a key of the document.
    """
    if as_json:
        document = document if note is None else {**document, "note": note}
        say(to_json(document, indent=2))
    else:
        say(render() if note is None else f"{render()}\n{one_line(note)}")


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return *rows* in columns under *headings*; numbers are right-aligned."""
    cells = [[one_line(str(value)) for value in row] for row in rows]
    widths = [
        max(len(heading), *(len(row[i]) for row in cells), 0) if cells else len(heading)
        for i, heading in enumerate(headings)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        for i in range(len(headings))
    ]

    def line(values: Sequence[str]) -> str:
        return "  ".join(
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([line(list(headings)), *(line(row) for row in cells)])


def indented(text: str | None) -> list[str]:
    """Return the indented lines of a traceback; none without one."""
    return [f"    {one_line(line)}" for line in (text or "").splitlines()]


def on_terminal() -> bool:
    """Tell whether progress may be shown: only if stderr is a terminal."""
    return sys.stderr.isatty()


class LiveLine:
    """A line on stderr that is overwritten, if stderr is a terminal; silent otherwise."""

    def __init__(self) -> None:
        self._on = on_terminal()
        self._written = False

    def show(self, text: str) -> None:
        """Replace the line with *text*."""
        if self._on:
            click.echo(f"\r{one_line(text)} ", err=True, nl=False)
            self._written = True

    def end(self) -> None:
        """End the line."""
        if self._written:
            click.echo("", err=True)


class DurationFlag(click.ParamType[float]):
    """A duration with its unit (`5m`, `250ms`), read as seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read *value*; a wrong one is a usage error."""
        if isinstance(value, float):
            return value
        try:
            return to_seconds(str(value), param.name or "duration" if param else "duration")
        except InvalidOption:
            self.fail('a duration with its unit, such as "250ms", "30s", "5m", "1h"', param, ctx)


DURATION = DurationFlag()

F = TypeVar("F", bound=Callable[..., Any] | click.Command)


class Decorator(Protocol):
    """What `click.option` returns: it adds an option to a command's function."""

    def __call__(self, fn: F, /) -> F: ...


json_flag: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document."
)


def fail_line(what: str, more: int = 0) -> None:
    """Print on stderr, in one line, why the exit code is 1."""
    others = f" (and {more} more)" if more else ""
    say(f"error: {one_line(what)}{others}", err=True)
