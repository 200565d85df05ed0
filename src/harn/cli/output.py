"""What commands print: one JSON document, or text; terminal escapes in it are made harmless."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from harn.cli.colours import by_word, has_colours, painted
from harn.cli.progress import live_line
from harn.cli.tables import fold, width_of
from harn.duration import ACCEPTED, to_seconds
from harn.errors import HarnError, InvalidOption, ManifestError
from harn.escaping import one_line, to_json


def say(text: str, *, err: bool = False) -> None:
    """Print *text* with its control characters escaped, so that a terminal obeys none.

    On a terminal long lines are folded at spaces, and marks are colours. A name or an error that
    must stay on one line goes through `one_line` first.
    """
    stream = sys.stderr if err else sys.stdout
    _print(painted(fold(text, width_of(stream)), has_colours(stream)), err=err)


def say_json(document: Any, *, indent: int | None = None, err: bool = False) -> None:
    """Print *document* as JSON, in which nothing is folded or coloured."""
    _print(to_json(document, indent=indent), err=err)


def _print(text: str, *, err: bool) -> None:
    live_line.erase()
    click.echo(text, err=err, color=True)  # colours were decided on above


def emit(as_json: bool, document: Any, render: Callable[[], str], note: str | None = None) -> None:
    """Print *document* as one JSON document, or else the text that *render* makes.

    A *note* is an extra line below the text, and a key of the document.
    """
    if as_json:
        say_json(document if note is None else {**document, "note": note}, indent=2)
    else:
        say(render() if note is None else f"{render()}\n{one_line(note)}")


def indented(text: str | None) -> list[str]:
    """Return the indented lines of a traceback; none without one."""
    return [f"    {one_line(line)}" for line in (text or "").splitlines()]


WITH_UNIT = 'a duration with its unit, such as "250ms", "30s", "5m", "1h"'


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
        except InvalidOption as error:
            limit = "" if error.accepted == ACCEPTED else f", {error.accepted}"
            self.fail(f"{WITH_UNIT}{limit}", param, ctx)


DURATION = DurationFlag()

F = TypeVar("F", bound=Callable[..., Any] | click.Command)


class Decorator(Protocol):
    """What `click.option` returns: it adds an option to a command's function."""

    def __call__(self, fn: F, /) -> F: ...


json_flag: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document."
)


def warn(text: str) -> None:
    """Print a warning on stderr, in one line."""
    say(f"{by_word('warning')}: {one_line(text)}", err=True)


def has_traceback(error: BaseException) -> bool:
    """Tell whether *error* reports what a handler's module or a setup raised: its place may help.

    The other errors of this library say all in their message.
    """
    cause = error.__cause__
    return isinstance(error, ManifestError) and not isinstance(cause, HarnError | None)


def fail_line(what: str, more: int = 0) -> None:
    """Print on stderr, in one line, why the exit code is 1."""
    others = f" (and {more} more)" if more else ""
    say(f"{by_word('error')}: {one_line(what)}{others}", err=True)
