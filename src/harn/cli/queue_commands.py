"""`harn orchestrator queue`: list worker queues, drain or purge one, explain a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from harn.cli.ask_service import CommandStop, operate
from harn.cli.colours import BOLD, by_word, colour
from harn.cli.command_log import log_as_service
from harn.cli.commands import HarnGroup
from harn.cli.output import DURATION, emit, fail_line, indented, say, warn
from harn.cli.progress import on_terminal
from harn.cli.queue_jobs import cancel, job, jobs, pause, queue_argument, resume, retry
from harn.cli.tables import table
from harn.cli.target import CommandTarget, common
from harn.cli.what_if import what_if
from harn.duration import roughly, to_text
from harn.errors import HarnError
from harn.escaping import one_line
from harn.orchestrator import Drain, explain as explain_job, queues_view
from harn.plurals import counted
from harn.runtime import Runtime
from harn.topics import check_queue_name
from harn.workers import WorkerQueue, default_consumer_id

MOST_NAMED = 10
"""The most paused tenants that are listed by name."""


@click.group(cls=HarnGroup, invoke_without_command=True)
@common
def queue(target: CommandTarget) -> Any:
    """List worker queues; drain, pause, replay or purge one; list or change its jobs."""
    if click.get_current_context().invoked_subcommand is None:
        return _list(target)
    return None


for _each in (jobs, job, cancel, retry, pause, resume, what_if):
    queue.add_command(_each)


@queue.command()
@common
def ls(target: CommandTarget) -> int:
    """List the queues with their counts, and how the scheduler shares them."""
    return _list(target)


def _list(target: CommandTarget) -> int:
    target.check_config()
    document, note = target.look(queues_view)
    for warning in document.get("warnings", ()):
        warn(warning)
    emit(target.as_json, document, lambda: _shown(document), note)
    return 0


def _shown(document: dict[str, Any]) -> str:
    queues = document["worker_queues"]
    if not queues:
        return "no worker queues"
    names = ("ready", "scheduled", "in_flight", "acked", "purged", "cancelled", "dead")
    headings = ["queue", *(name.replace("_", " ") for name in names), "oldest"]
    rows = [
        [
            each["queue"],
            *(each[name] for name in names),
            _age(each["oldest_unclaimed_age_ms"]),
        ]
        for each in queues
    ]
    parts = [table(headings, rows)]
    if pauses := [line for each in queues for line in paused_lines(each)]:
        parts.append("\n".join(pauses))
    headings = ["key", "weight", "deficit", "in flight", "selected", "deferred", "ready", "oldest"]
    for block in document["scheduler"]["per_queue"]:
        if block["keys"]:
            rows = [
                [
                    *(each[name] for name in ("fairness_key", "weight", "deficit", "in_flight")),
                    *(each[name] for name in ("selected_total", "deferred_total", "ready_jobs")),
                    _age(each["oldest_ready_age_ms"] or None),
                ]
                for each in block["keys"]
            ]
            title = (
                f"{one_line(block['queue'])}: {block['strategy']} by {block['fairness_key']}, "
                f"{'charged by cost, ' if block.get('charge') == 'cost' else ''}{_cap(block)}"
                f"{counted(block['rounds_completed'], 'round')}, "
                f"{counted(block['starvation_promotions_total'], 'promotion')}"
            )
            parts.append(f"{title}\n{table(headings, rows)}")
        if block.get("tree"):
            columns = ["path", "weight", "deficit", "in flight", "ready", "own"]
            parts.append(table(columns, list(_tree_rows(block["tree"], 0))))
    return "\n\n".join(parts)


def _tree_rows(nodes: list[dict[str, Any]], depth: int) -> Iterator[list[Any]]:
    """Return a row for each node, indented below its parent."""
    names = ("weight", "deficit", "in_flight", "ready_jobs", "own_jobs")
    for node in nodes:
        yield [f"{'  ' * depth}{node['name']}", *(node[name] for name in names)]
        yield from _tree_rows(node["children"], depth + 1)


def _cap(block: dict[str, Any]) -> str:
    cap = block["max_concurrent_per_key"]
    return f"at most {cap} in flight, " if cap else ""


def paused_lines(summary: dict[str, Any]) -> list[str]:
    """Say what of a queue is paused, by its summary."""
    name = one_line(summary["queue"])
    lines = [f"{name} is {by_word('paused')}"] if summary["paused"] else []
    if tenants := summary["paused_keys"]:
        more = f" and {len(tenants) - MOST_NAMED} more" if len(tenants) > MOST_NAMED else ""
        named = ", ".join(map(one_line, tenants[:MOST_NAMED]))
        lines.append(f"{name}: {by_word('paused')} for {named}{more}")
    return lines


def _age(ms: int | None) -> str:
    if ms is None:
        return "-"
    return roughly(ms)


@queue.command()
@queue_argument
@click.option("--consumer-id", help="Who claims; <host>-pid<pid>-<ms> by default.")
@click.option("--claim-ttl", type=DURATION, default="5m", show_default=True, help="Claims' life.")
@click.option("--concurrency", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--wait", is_flag=True, help="Wait for more when the queue is empty.")
@click.option("--shutdown-timeout", type=DURATION, default="30s", show_default=True)
@common
def drain(
    target: CommandTarget,
    name: str,
    consumer_id: str | None,
    claim_ttl: float,
    concurrency: int,
    wait: bool,
    shutdown_timeout: float,
) -> int:
    """Claim the jobs of QUEUE and run the manifest's handlers for them.

    A job is acked when the pool tasks that it causes have completed. It is not acked, and the exit
    code is 1, if one fails or has not ended --shutdown-timeout after its handler.

    After SIGTERM no more jobs are claimed, handlers may finish within --shutdown-timeout, the other
    jobs are released, and the exit code is 0. A second signal releases them at once.
    """
    if wait:
        log_as_service()
    options = Drain(
        queue=name,
        consumer_id=consumer_id,
        claim_ttl=claim_ttl,
        concurrency=concurrency,
        wait=wait,
        work_within=shutdown_timeout,
    )
    report = operate(
        target,
        "drain",
        options,
        wanted=(),
        stop=DrainStop(shutdown_timeout),
        # With --wait this process is a consumer beside those of the service.
        here=wait,
    )
    note = report.pop("note", None)
    emit(target.as_json, report, lambda: _reported(report), note)
    if "not_acked" not in report:
        return 0
    jobs = report["not_acked"]
    job, why = next(iter(jobs.items()))
    fail_line(f"job {job} of {name} is not acked: {why}", len(jobs) - 1)
    return 1


def _reported(report: dict[str, Any]) -> str:
    summary = report["summary"]
    lines = [
        f"{one_line(report['queue'])}: drained {report['drained']}, acked {report['acked']}, "
        f"deferred {report['deferred']} as {one_line(report['consumer_id'])} "
        f"(claims of {to_text(report['claim_ttl_ms'] / 1000)}); "
        f"{summary['ready']} ready, {summary['in_flight']} in flight"
    ]
    for each in report["responses"]:
        error = each.get("error")
        word, what = ("failed", error) if error else ("ok", each.get("outcome"))
        lines.append(f"  job {each['job_event_id']} {by_word(word)}: {one_line(str(what))[:200]}")
    return "\n".join(lines)


class DrainStop(CommandStop):
    """The first signal stops the claims; the second one, or the timeout, releases the jobs."""

    def ask(self) -> None:
        """Claim no more; a command that has claimed nothing is cancelled."""
        if self.service is None or not self.service.stop_consumers():
            self.stopping.cancel()
        elif on_terminal():
            say("finishing the running jobs; press again to release them at once", err=True)

    def give_up(self) -> None:
        """Release the jobs."""
        if self.service is not None:
            self.service.give_up_consumers()


@queue.command()
@queue_argument
@click.option("--confirm", is_flag=True, help="Confirm that the jobs are to be removed.")
@click.option("--reason", default="manual purge", show_default=True)
@common
def purge(target: CommandTarget, name: str, confirm: bool, reason: str) -> int:
    """Remove every ready and scheduled job of QUEUE; jobs in flight stay."""
    target.check_config()
    check_queue_name(name)
    if not confirm:
        raise HarnError(f"purging queue {name!r} removes its jobs forever; add --confirm")

    async def work(runtime: Runtime) -> dict[str, Any]:
        found = WorkerQueue(runtime, name, None)
        purged = await found.purge(reason, by=default_consumer_id(runtime))
        return {"queue": name, "purged": purged, "summary": (await found.summary()).as_dict()}

    document, note = target.look(work)
    emit(target.as_json, document, lambda: f"{one_line(name)}: purged {document['purged']}", note)
    return 0


@queue.command()
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
