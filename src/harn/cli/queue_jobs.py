"""`harn orchestrator queue jobs|job`: list the jobs of a queue, or show one."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.colours import by_word
from harn.cli.output import emit, indented
from harn.cli.queue_commands import job_argument, queue_argument
from harn.cli.tables import table
from harn.cli.target import CommandTarget, common
from harn.clock import iso
from harn.duration import roughly
from harn.escaping import one_line, to_json
from harn.orchestrator import known_job, known_queue
from harn.runtime import Runtime

LONGEST_VALUE = 500
"""Characters shown of a payload, an outcome or an error; --json has all of it."""


@click.command()
@queue_argument
@click.option("--status", help="ready, scheduled, in_flight, acked, dead, purged or cancelled.")
@click.option("--tenant", help="Only this tenant's jobs.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only jobs after this id.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@common
def jobs(
    target: CommandTarget,
    name: str,
    status: Any,
    tenant: str | None,
    after: int,
    limit: int,
) -> int:
    """List the jobs of QUEUE by id, oldest first."""
    target.check_config()

    async def work(runtime: Runtime) -> dict[str, Any]:
        queue = await known_queue(runtime, name)
        found = await queue.jobs(status=status, tenant_id=tenant, after=after, limit=limit)
        return {"queue": name, "now_ms": runtime.clock.now_ms(), "jobs": [*map(_plain, found)]}

    document = target.run(work, may_make=False)
    more = document["jobs"][-1]["id"] if len(document["jobs"]) == limit else None
    document["next_after"] = more
    emit(target.as_json, document, lambda: _listed(document, more))
    return 0


def _plain(job: Any) -> dict[str, Any]:
    shown: dict[str, Any] = job.as_dict()
    return shown


def _listed(document: dict[str, Any], more: int | None) -> str:
    if not document["jobs"]:
        return f"{one_line(document['queue'])}: no such jobs"
    rows = [
        (
            job["id"],
            job["status"].replace("_", " "),
            job["tenant_id"],
            f"{job['attempts']}/{job['max_attempts']}",
            roughly(document["now_ms"] - job["enqueued_at_ms"]),
            job["function"] or job["trigger_id"],
        )
        for job in document["jobs"]
    ]
    lines = [table(("id", "status", "tenant", "tries", "age", "what"), rows)]
    if more is not None:
        lines.append(f"there may be more: --after {more}")
    return "\n".join(lines)


def _cut(text: str | None, most: int) -> str:
    shown = "-" if text is None else one_line(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


@click.command()
@queue_argument
@job_argument
@common
def job(target: CommandTarget, name: str, id: str) -> int:
    """Show job ID of QUEUE: its status, its outcome, its last error."""
    target.check_config()

    async def work(runtime: Runtime) -> dict[str, Any]:
        return _plain(await known_job(await known_queue(runtime, name), id))

    document = target.run(work, may_make=False)
    emit(target.as_json, document, lambda: _shown(document))
    return 0


def _shown(job: dict[str, Any]) -> str:
    shown = dict(job)
    trace, steps = indented(shown.pop("traceback")), shown.pop("steps")
    if shown["status"] != "acked":
        del shown["outcome"]
    if not shown["outcome_omitted"]:
        del shown["outcome_omitted"]
    lines = [f"job {shown.pop('id')} of {one_line(shown.pop('queue'))}"]
    for name, value in shown.items():
        if value == {} or (value is None and name not in ("payload", "outcome")):
            continue
        if name.endswith("_at_ms") or name == "not_before_ms":
            name, value = name.removesuffix("_ms"), iso(value)
        text = value if isinstance(value, str) else to_json(value)
        text = _cut(text, LONGEST_VALUE)
        lines.append(
            f"  {name.replace('_', ' '):<16}  {by_word(text) if name == 'status' else text}"
        )
    return "\n".join([*lines, *_steps(steps), *trace])


def _steps(steps: list[dict[str, Any]]) -> list[str]:
    """Return a line for each recorded step: how long it took, and its name."""
    if not steps:
        return []
    return ["  steps", *(f"    {each['duration_ms']:>8} ms  {_name(each)}" for each in steps)]


def _name(step: dict[str, Any]) -> str:
    number = f" ({step['number'] + 1})" if step["number"] else ""
    return _cut(step["name"], LONGEST_VALUE - len(number)) + number
