"""`harn orchestrator check`: is this manifest right? Every mistake, its place, a way out."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.output import emit, say
from harn.cli.where import Where, common
from harn.errors import ManifestError
from harn.escaping import one_line, to_json


@click.command()
@click.option("--schema", is_flag=True, help="Print the manifest's JSON Schema, for editors.")
@common
def check(where: Where, schema: bool) -> int:
    """Check a manifest: its tables, its handlers, and what keeps it from being served.

    Exits with 1 when there is a mistake. Handlers are imported; secrets are not read.
    """
    from harn.orchestrator import ManifestProblems, manifest_schema

    if schema:
        say(to_json(manifest_schema(), indent=2))
        return 0
    where.check_state_dir()
    try:
        manifest = where.manifest()
    except ManifestProblems as error:
        lines = [one_line(str(problem)) for problem in error.problems]
        problems = [problem.as_dict() for problem in error.problems]
        found = {"ok": False, "problems": problems, "notes": []}
        emit(where.as_json, found, lambda: "\n".join(lines))
        return 1
    problems, notes = _look_further(manifest)
    found = {
        "ok": not problems,
        "triggers": [trigger.id for trigger in manifest.triggers],
        "problems": problems,
        "notes": notes,
    }
    emit(where.as_json, found, lambda: _rendered(found))
    return 1 if problems else 0


def _look_further(manifest: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Import the handlers, and say what keeps the manifest from being served."""
    from harn.orchestrator import Problem, unservable

    exports = manifest.resolver()
    problems, notes = [], []
    for number, trigger in enumerate(manifest.triggers):
        where = f"triggers[{number}]"
        try:
            manifest.bound(trigger, exports)
        except ManifestError as error:
            problems.append(Problem(manifest.path.name, where, "handler", str(error)).as_dict())
        if (why := unservable(trigger)) is not None:
            notes.append(f"{where} ({trigger.id}): {why}")
    if manifest.setup is not None:
        try:
            exports.resolve(manifest.setup)
        except ManifestError as error:
            name = manifest.path.name
            problems.append(Problem(name, "orchestrator", "setup", str(error)).as_dict())
    return problems, notes


def _rendered(found: dict[str, Any]) -> str:
    lines = [
        one_line(f"{each['file']}: {each['table']}.{each['key']}: {each['message']}")
        for each in found["problems"]
    ]
    lines += [one_line(f"note: {note}") for note in found["notes"]]
    if found["ok"]:
        lines.append(f"ok: {len(found['triggers'])} triggers")
    return "\n".join(lines)
