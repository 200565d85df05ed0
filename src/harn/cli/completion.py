"""`harn completion`: print the script that makes a shell complete harn's commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for SHELL; `eval "$(harn completion bash)"` loads it."""
    from harn.cli.commands import harn

    kind = get_completion_class(shell)
    assert kind is not None  # one of SHELLS
    click.echo(kind(harn, {}, "harn", "_HARN_COMPLETE").source())
