"""`harn orchestrator queue explain`: why one job is not running."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.colours import BOLD, by_word, colour
from harn.cli.output import emit, indented
from harn.cli.queue_commands import queue_argument
from harn.cli.tables import table
from harn.cli.target import CommandTarget, common
from harn.escaping import one_line
from harn.orchestrator import explain as explain_job
from harn.topics import check_queue_name


@click.command()
@queue_argument
@click.argument("job", type=click.IntRange(1))
@common
def explain(target: CommandTarget, name: str, job: int) -> int:
    """Tell why JOB of QUEUE is not running."""
    check_queue_name(name)
    document = target.run(lambda runtime: explain_job(runtime, name, job), may_make=False)
    emit(target.as_json, document, lambda: _explained(document))
    return 0


def _explained(document: dict[str, Any]) -> str:
    shown = {key: value for key, value in document.items() if value is not None}
    lines = [f"job {shown.pop('job_event_id')} of {one_line(shown.pop('queue'))}"]
    lines.append(f"  {colour(BOLD, one_line(shown.pop('verdict')))}")
    if (start := shown.pop("start", None)) is not None:
        lines.append(f"  its start: {one_line(start['text'])}")
    keys_ahead = shown.get("scheduling", {}).pop("keys_ahead", [])
    failure = shown.pop("failure", {})

    def render(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                render(f"{prefix}.{key}" if prefix else key, inner)
        elif not isinstance(value, list):
            lines.append(f"  {prefix.replace('scheduling.', ''):<24}{one_line(str(value))}")

    render("", shown)
    for each in document.get("history", [])[-5:]:
        status, error = by_word(each["status"]), one_line(str(each["error"]))
        lines.append(f"  attempt {each['attempt']}: {status}: {error}")
    lines += indented(failure.get("traceback"))
    if keys_ahead:
        rows = [[each["key"], each["credit"], each["ready_jobs"]] for each in keys_ahead[:20]]
        lines.append("  keys whose turn comes first:")
        lines += [f"    {line}" for line in table(["key", "credit", "ready"], rows).splitlines()]
    return "\n".join(lines)
