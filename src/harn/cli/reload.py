"""`harn orchestrator reload`: the running service reads its manifest again."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.ask_service import ask_service
from harn.cli.output import emit
from harn.cli.target import CommandTarget, common
from harn.errors import HarnError
from harn.escaping import one_line
from harn.orchestrator import Options, verb
from harn.plurals import counted


@click.command()
@common
def reload(target: CommandTarget) -> int:
    """Let the service that runs on the state directory read its manifest again.

    With a mistake in the manifest nothing changes, and the exit code is 1.
    """
    document = ask_service(target, verb("reload"), Options())
    if document is None:
        raise HarnError("no service runs on this state directory; start one with `serve`")
    emit(target.as_json, document, lambda: _shown(document))
    return 0


def _shown(document: dict[str, Any]) -> str:
    changed = ", ".join(document["manifest"]) or "nothing"
    lines = [f"reloaded {counted(document['triggers'], 'trigger')}; changed: {changed}"]
    if document["at_next_start"]:
        lines.append(f"at the next start: {', '.join(document['at_next_start'])}")
    return "\n".join(one_line(line) for line in lines)
