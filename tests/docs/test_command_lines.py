"""Every command line of harn in the pages is one that harn takes: its commands and its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from harn.cli.commands import harn as tree

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|text)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(harn [^`]+)`")
COMMAND = re.compile(r"(?:^|&& |\| |; )\s*(?:\w+=\S+ )*(?:\S*/)?(harn [^|;&\n]+)", re.MULTILINE)
A_FORM = re.compile(r"[\[|…]|\.\.\.")
"""What shows how commands are written, such as `harn usage [--since 24h]`, is no command line."""


def command_lines(page: str) -> list[str]:
    blocks = "\n".join(BLOCK.findall(page)).replace("\\\n", " ")
    found = [*COMMAND.findall(blocks), *INLINE.findall(page)]
    return [re.sub(r"\$\([^)]*\)", "x", each) for each in found if not A_FORM.search(each)]


def mistake_in(line: str) -> str | None:
    """What harn would say about the way *line* is written; None if nothing."""
    command: click.Command = tree
    context = click.Context(command)
    words = shlex.split(line, comments=True)[1:]
    try:
        while isinstance(command, click.Group):
            parser = command.make_parser(context)
            parser.allow_interspersed_args = False
            _, words, _ = parser.parse_args(words)
            if not words:
                return None  # the name of a group
            name, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
            context = click.Context(command, parent=context, info_name=name)
        _, words, _ = command.make_parser(context).parse_args(words)
    except click.UsageError as error:
        return error.format_message()
    return f"too many arguments: {words}" if words else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_harn_takes_every_command_line_of_a_page(page: Path) -> None:
    lines = command_lines(page.read_text())

    assert [(line, said) for line in lines if (said := mistake_in(line))] == []


def test_command_lines_are_found_wherever_they_stand() -> None:
    page = """Type `harn log trim`, or
```sh
cd x && harn top --once | head
HARN_LOG=json .venv/bin/harn log tail news
harn usage [--json]
```
"""

    assert [each.strip() for each in command_lines(page)] == [
        "harn top --once",
        "harn log tail news",
        "harn log trim",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("harn top --once", None),
        ("harn orchestrator queue", None),
        ("harn log tial news", "tial"),
        ("harn orchestrator queue ls --jsn", "--jsn"),
        ("harn orchestrator queue resume", None),
        ("harn log tail news more", "too many"),
    ],
)
def test_a_wrong_command_line_is_found(line: str, said: str | None) -> None:
    mistake = mistake_in(line)

    assert (mistake is None) if said is None else (said in (mistake or ""))
