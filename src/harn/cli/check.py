"""`harn orchestrator check`: report every mistake in a manifest, with its place and a fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from harn.cli.colours import RED, by_word, colour
from harn.cli.orchestrator_commands import DEFAULT_CONFIG
from harn.cli.output import emit, say_json
from harn.cli.target import CommandTarget, common
from harn.escaping import one_line
from harn.orchestrator import (
    ManifestProblems,
    ManifestTrigger,
    Problem,
    examine_manifest,
    manifest_schema,
    unservable,
)
from harn.plurals import counted


@click.command()
@click.option("--schema", is_flag=True, help="Print the manifest's JSON Schema, for editors.")
@common
def check(target: CommandTarget, schema: bool) -> int:
    """Check a manifest: its tables, its handlers, and whether it can be served.

    Exits with 1 if there is a mistake. Handlers are imported; secrets are not read.
    """
    if schema:
        say_json(manifest_schema(), indent=2)
        return 0
    target.check_state_dir()
    try:
        manifest, problems = examine_manifest(target.config or DEFAULT_CONFIG)
        triggers: Sequence[ManifestTrigger] = manifest.triggers
    except ManifestProblems as error:  # not even TOML
        problems, triggers = error.problems, ()
    found = {
        "ok": not problems,
        "triggers": [each.id for each in triggers],
        "problems": [problem.as_dict() for problem in problems],
        "notes": list(_notes(triggers)),
    }
    emit(target.as_json, found, lambda: _rendered(found, problems))
    return 1 if problems else 0


def _notes(triggers: Sequence[ManifestTrigger]) -> Iterator[str]:
    """Yield why a trigger cannot be served."""
    for trigger in triggers:
        if (why := unservable(trigger)) is not None:
            yield f"triggers[{trigger.number}] ({trigger.id}): {why}"


def _rendered(found: dict[str, Any], problems: Sequence[Problem]) -> str:
    lines = [colour(RED, one_line(str(problem))) for problem in problems]
    lines += [f"note: {one_line(note)}" for note in found["notes"]]
    if not problems:
        lines.append(f"{by_word('ok')}: {counted(len(found['triggers']), 'trigger')}")
    return "\n".join(lines)
